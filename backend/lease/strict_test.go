package lease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestLongLifeOnASlowClock: a lease ends before its window does, by a clock that drifts.
func TestLongLifeOnASlowClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newCreditor(2 * time.Millisecond)
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(100_000, 24*time.Hour).Aligned()}}
		start := time.Now()
		slow := func() time.Time { return start.Add(time.Since(start) * 9995 / 10000) }
		ls := backendtesting.NewLease(t, inner, lease.Config{Processes: 1, Batch: 1000, Now: slow})
		take(t, ls, p, 1)
		take(t, ls, p, 1)
		time.Sleep(24*time.Hour + time.Second)
		r := take(t, ls, p, 100)
		receipt := r.Receipt()
		if end, _, _ := receipt.Charge(0); end < time.Now().UnixMicro() {
			t.Errorf("%s %s after its window had ended", r.Source, r.Guarantee)
		}
	})
}

// stateless is a creditor whose replies stop carrying state.
type stateless struct {
	*creditor
	off atomic.Bool
}

func (s *stateless) Charge(ctx context.Context, req backend.Request, m state.Mark) (backend.Result, error) {
	r, err := s.creditor.Charge(ctx, req, m)
	if s.off.Load() {
		r.State = state.State{}
	}
	return r, err
}

func (s *stateless) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := s.creditor.Take(ctx, req)
	if s.off.Load() {
		r.State = state.State{}
	}
	return r, err
}

// TestCreditWithoutState: a key whose replies stop carrying state is on credit for one allowance at most, and is so again once
// they carry it.
func TestCreditWithoutState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := &stateless{creditor: newCreditor(2 * time.Millisecond)}, minute(100)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		inner.off.Store(true)
		admitted := int64(1)
		for range 300 {
			if take(t, ls, p, 10).Allowed {
				admitted += 10
			}
			time.Sleep(60 * time.Millisecond)
		}
		if admitted > 100+50 {
			t.Errorf("%d of 100 are admitted", admitted)
		}
		inner.off.Store(false)
		time.Sleep(time.Minute)
		take(t, ls, p, 1)
		if r := take(t, ls, p, 1); r.Source != backend.OnCredit {
			t.Errorf("with state again: by %s", r.Source)
		}
	})
}

// TestNoCreditOnceClosed: a take that has passed the check of Close is not admitted on credit behind the last flush.
func TestNoCreditOnceClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(100)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		take(t, ls, p, 1)
		ls.CloseShards()
		if r := take(t, ls, p, 1); r.Source != backend.Primary {
			t.Errorf("by %s", r.Source)
		}
	})
}

// TestCreditKeepsItsPolicy: a caller may change its policy after a take.
func TestCreditKeepsItsPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(100)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		take(t, ls, p, 1)
		p.Limits[0].Max = 7
		r := take(t, ls, minute(100), 1)
		if r.Source != backend.OnCredit || r.Binding().Limit.Max != 100 {
			t.Errorf("by %s, of %s", r.Source, r.Binding().Limit)
		}
	})
}
