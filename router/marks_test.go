//go:build unix

package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// TestMarksOfRandomKeys measures what a handover stores for keys that are asked for once, with a window of a second: a key on both
// sides, for as long as the handover of one key may take, where without it there is one key for two seconds. Its figures are in
// docs/security.md.
func TestMarksOfRandomKeys(t *testing.T) {
	t.Parallel()
	const keys, settle = 500, 10 * time.Minute
	policy := &limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerSecond(10)}}
	stored := func(t *testing.T, s *testserver.Server) (n, bytes int64, longest time.Duration) {
		for _, name := range s.Client().Keys(t.Context(), "sl:api:*").Val() {
			n++
			bytes += s.Client().MemoryUsage(t.Context(), name).Val()
			longest = max(longest, s.Client().PTTL(t.Context(), name).Val())
		}
		return n, bytes / max(n, 1), longest
	}
	use := func(t *testing.T, b backend.Backend) {
		for i := range keys {
			if _, err := b.Take(t.Context(), backend.Request{Key: fmt.Sprintf("user:%012d", i), Policy: policy, Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	openOne := func(t *testing.T, s *testserver.Server) backend.Backend {
		b, err := redisbackend.New(s.Client(), redisbackend.Config{Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Run("nothing moves", func(t *testing.T) {
		s := testserver.Redis(t)
		use(t, openOne(t, s))
		n, bytes, longest := stored(t, s)
		t.Logf("%d keys of %d bytes, for up to %v", n, bytes, longest)
		if n > keys || longest > 2*time.Second {
			t.Error("want at most two seconds")
		}
	})
	check := func(t *testing.T, where string, s *testserver.Server, want int64) {
		n, bytes, longest := stored(t, s)
		t.Logf("%s: %d keys of %d bytes, for up to %v", where, n, bytes, longest)
		if bound := settle + 2*time.Second; n != want || longest > bound || longest < settle-time.Minute || bytes > 200 {
			t.Errorf("want %d keys of at most 200 bytes, for at most %v", want, bound)
		}
	}
	t.Run("a migration", func(t *testing.T) {
		before, after := testserver.Redis(t), testserver.Redis(t)
		d, err := dual.New(dual.Config{
			Old: openOne(t, before), New: openOne(t, after), CarryOver: true, Settle: settle,
			Decide: func(string) (bool, uint64) { return true, 1 },
		})
		if err != nil {
			t.Fatal(err)
		}
		use(t, d)
		check(t, "old", before, keys)
		check(t, "new", after, keys)
	})
	t.Run("a change of the topology", func(t *testing.T) {
		c := startCluster(t, 2, 0)
		one := router.Topology{Epoch: 1, Groups: c.topology.Groups[:1]}
		two := router.Topology{Epoch: 2, Groups: c.topology.Groups[1:], Previous: &one}
		use(t, dial(t, two, router.Config{Settle: settle, Backend: redisbackend.Config{Timeout: 5 * time.Second}}))
		check(t, "old", c.primaries["a"], keys)
		check(t, "new", c.primaries["b"], keys)
	})
}
