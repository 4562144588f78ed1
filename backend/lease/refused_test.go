package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// choosy is a creditor that refuses charges of one policy.
type choosy struct {
	*creditor
	refuses string
	err     error
}

func (c *choosy) Charge(ctx context.Context, req backend.Request, m state.Mark) (backend.Result, error) {
	c.mu.Lock()
	refused := req.Policy.Name == c.refuses
	c.mu.Unlock()
	if refused {
		return backend.Result{}, c.err
	}
	return c.creditor.Charge(ctx, req, m)
}

// TestRefusedCharges: a refused charge keeps its key from credit for a while, and no other; a batch takes its place.
func TestRefusedCharges(t *testing.T) {
	for _, err := range []error{&limit.Error{Field: "policy", Value: "x", Bound: "y"}, backend.ErrUnsupported} {
		synctest.Test(t, func(t *testing.T) {
			inner, good := &choosy{creditor: newCreditor(2 * time.Millisecond), refuses: "bad", err: err}, minute(1000)
			bad := &limit.Policy{Name: "bad", Limits: good.Limits}
			ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.1, Processes: 2})
			take(t, ls, good, 1)
			take(t, ls, bad, 1)
			take(t, ls, bad, 1)
			time.Sleep(100 * time.Millisecond)
			if s := ls.Stats(); s.Flushes != 1 || s.LostCharges != 1 {
				t.Fatalf("%+v", s)
			}
			sources := make(map[backend.Source]int)
			for range 20 {
				sources[take(t, ls, bad, 1).Source]++
			}
			if sources[backend.OnCredit] > 0 || sources[backend.Leased] == 0 {
				t.Errorf("%v: %v", err, sources)
			}
			if r := take(t, ls, good, 1); r.Source != backend.OnCredit {
				t.Errorf("%v: the other key by %s", err, r.Source)
			}
			inner.mu.Lock()
			inner.refuses = ""
			inner.mu.Unlock()
			time.Sleep(150 * time.Second)
			if r := take(t, ls, bad, 1); r.Source != backend.OnCredit {
				t.Errorf("%v: later by %s", err, r.Source)
			}
		})
	}
}
