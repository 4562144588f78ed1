//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestFirstRequestAfterLoss: a server loses everything, and a process that knows nothing of a key is the first to ask for it.
// The window that it begins ends later than the one that was lost; what the others know of that one must count all the same.
func TestFirstRequestAfterLoss(t *testing.T) {
	t.Parallel()
	const processes, holders, early = 20, 10, 5
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	c := ours(t, processes, setup{groups: groups, policy: one(thousand), failure: throttler.FailClosed, floors: true,
		router: router.Config{Backend: patient, TripAfter: -1}})
	var h history
	call := func(process int) { h.call(c, process, "user:1") }
	for i := range 600 {
		call(i % holders)
	}
	h.lose(false, func() { command(t, s, "FLUSHALL") })
	for range early {
		call(holders) // it has no floor
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	running := h.load(ctx, c, "user:1")
	defer running.Wait()
	defer stop()
	await(t, "all are denied", func() bool { return h.exhausted(processes) })
	stop()
	running.Wait()
	r := result{bound: h.bound(), formula: "as measured", sluice: of(c, h.admitted()-thousand.Max)}
	r.sluice.note = fmt.Sprintf("%d before the loss, %d by a process without a floor", 600, early)
	report(t, "failover-first-request", r)
}
