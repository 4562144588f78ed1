//go:build unix

package router_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// TestServersThatTakeNoWrites: real servers that refuse what a take writes, answer heartbeats, and are read.
func TestServersThatTakeNoWrites(t *testing.T) {
	t.Parallel()
	set := func(s *testserver.Server, name, value string) error {
		return s.Client().ConfigSet(t.Context(), name, value).Err()
	}
	for name, test := range map[string]struct {
		begin, end func(t *testing.T, s *testserver.Server) error
		source     backend.Source // of what is read meanwhile
		guarantee  backend.Guarantee
	}{
		"OOM": {
			func(t *testing.T, s *testserver.Server) error { return set(s, "maxmemory", "1") },
			func(t *testing.T, s *testserver.Server) error { return set(s, "maxmemory", "0") },
			backend.Primary, backend.Exact,
		},
		"NOREPLICAS": {
			func(t *testing.T, s *testserver.Server) error { return set(s, "min-replicas-to-write", "1") },
			func(t *testing.T, s *testserver.Server) error { return set(s, "min-replicas-to-write", "0") },
			backend.Primary, backend.Exact,
		},
		"READONLY": {
			func(t *testing.T, s *testserver.Server) error {
				next := testserver.Replica(t, s)
				next.AwaitSync(s)
				host, port, _ := net.SplitHostPort(next.Addr)
				return errors.Join(next.Client().ReplicaOf(t.Context(), "NO", "ONE").Err(), s.Client().ReplicaOf(t.Context(), host, port).Err())
			},
			func(t *testing.T, s *testserver.Server) error {
				return s.Client().ReplicaOf(t.Context(), "NO", "ONE").Err()
			},
			backend.Replica, backend.Bounded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			var events log
			r := dial(t, router.Topology{Groups: []router.Group{{Name: "a", Primary: server.Addr}}}, router.Config{OnEvent: events.add})
			if err := take(t, r); err != nil {
				t.Fatal(err)
			}
			if err := test.begin(t, server); err != nil {
				t.Fatal(err)
			}
			await(t, "the breaker opens", func() bool { return errors.Is(take(t, r), router.ErrBreakerOpen) })
			await(t, "a read", func() bool {
				got, err := r.Peek(t.Context(), request("k"))
				return err == nil && got.Allowed && got.Binding().Remaining == 4 && got.Source == test.source && got.Guarantee == test.guarantee
			})
			for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(20 * time.Millisecond) {
				if err := take(t, r); kind(err) != backend.Unavailable {
					t.Fatalf("take: %v", err)
				}
			}
			if events.has("a", server.Addr, router.BreakerClosed) {
				t.Errorf("events %v", events.all())
			}
			if err := test.end(t, server); err != nil {
				t.Fatal(err)
			}
			await(t, "a take", func() bool { return take(t, r) == nil })
			await(t, "an event", func() bool { return events.has("a", server.Addr, router.BreakerClosed) })
		})
	}
}
