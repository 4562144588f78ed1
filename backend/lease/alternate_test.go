package lease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestCreditOfAlternatingPolicies: during a deploy two policies of one name are on credit, each in a segment of its own.
func TestCreditOfAlternatingPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(10_000)
		q := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(10_001).Aligned()}}
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		sources := make(map[backend.Source]int)
		for range 200 {
			sources[take(t, ls, p, 1).Source]++
			sources[take(t, ls, q, 1).Source]++
			time.Sleep(time.Millisecond)
		}
		if sources[backend.Primary] > 0 {
			t.Errorf("%v", sources)
		}
		time.Sleep(100 * time.Millisecond)
		if used := inner.used(t, p); used != 401 {
			t.Errorf("%d are used", used)
		}
	})
}

// floors counts the charges that carry a floor.
type floors struct {
	*creditor
	n atomic.Int64
}

func (f *floors) Charge(ctx context.Context, req backend.Request, m state.Mark) (backend.Result, error) {
	if req.Floor != nil {
		f.n.Add(1)
	}
	return f.creditor.Charge(ctx, req, m)
}

// TestChargesBesideAnotherPolicy: a server that knows a limit more than this process needs no floor.
func TestChargesBesideAnotherPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := &floors{creditor: newCreditor(2 * time.Millisecond)}, minute(1000)
		old := &limit.Policy{Name: "p", Limits: []limit.Limit{p.Limits[0], limit.PerHour(10_000).Aligned()}}
		take(t, inner, old, 1)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		for range 20 {
			take(t, ls, p, 1)
			time.Sleep(60 * time.Millisecond)
		}
		if n := inner.n.Load(); n > 0 {
			t.Errorf("%d charges carry a floor", n)
		}
	})
}
