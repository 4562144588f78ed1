package backendtest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// debtor charges a take a little later than it answers, one at a time.
type debtor struct {
	*fragile
	how  string // what is wrong with it
	owed atomic.Int64
}

func (d *debtor) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if d.check(ctx, &req, true) != nil || req.Floor != nil || req.Move != (state.Move{}) || !d.owed.CompareAndSwap(0, req.Cost) {
		return d.fragile.Take(ctx, req)
	}
	known, err := d.Load(ctx, req)
	at := d.at(req)
	r := backend.Result{Verdict: known.State.Take(req.Policy, at, req.Cost), Now: at.Micros, Source: backend.OnCredit}
	if err != nil || !r.Allowed {
		d.owed.Store(0)
		return d.fragile.Take(ctx, req)
	}
	receipt, times := r.Receipt(), 1
	switch d.how {
	case "never":
		times = 0
	case "twice":
		times = 2
	case "shows more":
		admitted := r.Verdict
		admitted.Part(&r.Verdict, req.Cost, 1)
	}
	go func() {
		time.Sleep(time.Millisecond)
		for range times {
			_, _ = d.Charge(context.Background(), req, receipt.Mark())
		}
		d.owed.Store(0)
	}()
	return r, nil
}

// TestOwes: what is charged late passes with the option, and fails without; what is charged wrongly, or shows more than
// remains, fails with it.
func TestOwes(t *testing.T) {
	const env = "SLUICE_BACKENDTEST_OWES"
	var d *debtor
	play := func(t *testing.T, how string, options ...backendtest.Option) {
		backendtest.Run(t, func(_ *testing.T, now func() time.Time) backend.Backend {
			d = &debtor{fragile: newFragile(now, ""), how: how}
			return struct { // it neither seals nor publishes
				backend.Backend
				backend.Loader
				backend.Charger
				backend.Refunder
			}{d, d, d, d}
		}, options...)
	}
	owes := backendtest.Owes(
		func(backend.Backend) int64 { return d.owed.Load() },
		func(limit.Limit) int64 { return 7 }, // the most that callers at once ask for
	)
	switch how := os.Getenv(env); how {
	case "":
	case "late":
		play(t, "")
		return
	default:
		play(t, how, owes)
		return
	}
	play(t, "", owes)
	for how, part := range map[string]string{"late": "Load", "never": "Load", "twice": "Load", "shows more": "Aligned"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOwes$/^"+part+"$", "-rapid.nofailfile", "-rapid.shrinktime=0s")
		cmd.Env = append(os.Environ(), env+"="+how)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--- FAIL: TestOwes/"+part) {
			t.Errorf("%s: the suite doesn't see it: %v\n%s", how, err, out)
		}
	}
}
