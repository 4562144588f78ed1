package lease_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

func (d *creditor) Grant(_ context.Context, req backend.Request, extra int64) error {
	d.travel("grant")
	d.do(&req, func(s *state.State, at state.At) { s.Grant(req.Policy, at, extra) })
	time.Sleep(d.trip / 2)
	return nil
}

// What this process owes is part of what a grant gives back.
func TestGrantOfWhatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(100)
		ls := onCredit(t, inner)
		for range 25 {
			take(t, ls, p, 1)
		}
		inner.sent()
		if err := ls.Grant(t.Context(), backend.Request{Key: "key", Policy: p, Cost: 1}, 20); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * time.Millisecond)
		if used, sent := inner.used(t, p), inner.sent(); used != 5 || !strings.HasSuffix(sent, ", grant") {
			t.Errorf("25 were used and 20 granted: %d are used after %s", used, sent)
		}
	})
}
