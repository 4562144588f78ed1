//go:build unix

package simulation_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestFleetServer measures on a redis-server what the tables of TestFleet take for granted: processor time and bytes of a
// call. Processes of a large fleet rarely have two calls for one server at a time, so theirs travel alone.
func TestFleetServer(t *testing.T) {
	rounds, each := 1, 256
	if *fleetFlag { // measure rather than try
		rounds, each = 15, 4096
	}
	server := testserver.Redis(t)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisbackend.Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p := &limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(1_000_000)}}
	two := &limit.Policy{Name: "two", Limits: []limit.Limit{limit.PerSecond(1_000_000), limit.PerMinute(10_000_000)}}
	sliding := &limit.Policy{Name: "sliding", Limits: []limit.Limit{limit.Sliding(1_000_000, time.Hour, time.Minute)}}
	bucket := &limit.Policy{Name: "bucket", Limits: []limit.Limit{limit.TokenBucket(100, time.Second, 1_000_000)}}
	take := func(p *limit.Policy, cost int64) func(int) error {
		return func(i int) error {
			_, err := b.Take(context.Background(), backend.Request{Key: "user:" + strconv.Itoa(i%1000), Policy: p, Cost: cost})
			return err
		}
	}
	r, err := b.Take(context.Background(), backend.Request{Key: "lease", Policy: p, Cost: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	charge := func(p *limit.Policy) func(int) error {
		return func(i int) error {
			mark, _ := state.MarkAt(p, state.At{Micros: time.Now().UnixMicro()})
			_, err := b.Charge(context.Background(), backend.Request{Key: "user:" + strconv.Itoa(i%1000), Policy: p, Cost: 1}, mark)
			return err
		}
	}
	aligned := &limit.Policy{Name: "aligned", Limits: []limit.Limit{limit.PerMinute(1_000_000).Aligned()}}
	alignedTwo := &limit.Policy{Name: "alignedtwo", Limits: []limit.Limit{limit.PerSecond(1_000_000).Aligned(), limit.PerMinute(10_000_000).Aligned()}}
	var rows strings.Builder
	for _, row := range []struct {
		name    string
		callers int
		call    func(int) error
	}{
		{"take, one limit", 1, take(p, 1)},
		{"take of a batch, one limit", 1, take(p, 2)},
		{"take, one sliding limit", 1, take(sliding, 1)},
		{"take, one bucket", 1, take(bucket, 1)},
		{"take, two limits", 1, take(two, 1)},
		{"take, one limit, 64 callers of one process", 64, take(p, 1)},
		{"refund", 1, func(int) error {
			return b.Refund(context.Background(), backend.Request{Key: "lease", Policy: p}, r.Receipt(), 1)
		}},
		{"charge, one limit", 1, charge(aligned)},
		{"charge, two limits", 1, charge(alignedTwo)},
		{"charge, one limit, 32 of one process", 32, charge(aligned)},
		{"charge, two limits, 32 of one process", 32, charge(alignedTwo)},
		{"heartbeat", 1, func(int) error { _, err := b.Heartbeat(context.Background()); return err }},
	} {
		var least spent // other work on the machine only adds to it
		for round := range rounds {
			before := spentBy(t, server)
			var all sync.WaitGroup
			for caller := range row.callers {
				all.Go(func() {
					for i := range each / row.callers {
						if err := row.call(caller + i); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			after := spentBy(t, server)
			one := spent{(after.micros - before.micros) / float64(each), (after.in - before.in) / float64(each), (after.out - before.out) / float64(each)}
			if round == 0 || one.micros < least.micros {
				least = one
			}
		}
		fmt.Fprintf(&rows, "| %s | %.0f | %.0f | %.0f |\n", row.name, least.micros, least.in, least.out)
	}
	t.Logf("\n\n| call | Redis CPU, us | bytes to the server | and back |\n|---|---|---|---|\n%s", rows.String())
}

// spent is what a server has used up.
type spent struct{ micros, in, out float64 }

func spentBy(t *testing.T, server *testserver.Server) (s spent) {
	t.Helper()
	info, err := server.Client().Info(t.Context(), "cpu", "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "used_cpu_sys", "used_cpu_user":
			s.micros += n * 1e6
		case "total_net_input_bytes":
			s.in = n
		case "total_net_output_bytes":
			s.out = n
		}
	}
	return s
}
