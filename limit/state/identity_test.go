package state_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestAppendID(t *testing.T) {
	for want, l := range map[string]limit.Limit{
		"f1s": limit.PerSecond(1), "f1m": limit.PerMinute(2), "a1h": limit.PerHour(3).Aligned(), "g24h": limit.PerDay(4).Staggered(),
		"s1h~1m": limit.Sliding(5, time.Hour, time.Minute).Named("n"), "b1s": limit.TokenBucket(6, time.Second, 7),
	} {
		if got := string(state.AppendID([]byte("x"), &l)); got != "x"+want {
			t.Errorf("%s: %s, want x%s", l, got, want)
		}
	}
}

// TestIDsAreTextForms: an identity names durations as the text form of a limit does.
func TestIDsAreTextForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t)
		_, text, _ := strings.Cut(l.String(), "/")
		text, _, _ = strings.Cut(text, "+")
		text, _, _ = strings.Cut(text, "@")
		if got := string(state.AppendID(nil, &l))[1:]; got != text {
			t.Fatalf("%s: %s, want %s", l, got, text)
		}
	})
}

// TestWhatScriptsAreTold: End is where the first charge ends up, Refill the exact time of the textbooks.
func TestWhatScriptsAreTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 1)
		l, cost := &w.policy.Limits[0], w.drawCost(t)
		v := w.state.Take(w.policy, w.now, cost)
		receipt := v.Receipt()
		end, _, _ := receipt.Charge(0)
		if l.Algorithm != limit.Bucket {
			if state.End(l, w.now)*1000 != end || end <= w.now.Micros {
				t.Fatalf("%s: End is %d, the charge went to %d", l, state.End(l, w.now), end)
			}
			return
		}
		if state.End(l, w.now) != 0 {
			t.Fatalf("%s: End is %d", l, state.End(l, w.now))
		}
		micros, fraction := l.Refill(cost)
		if got := spanOf(t, fmt.Sprintf("%d.%d", micros, fraction), l.Max); got.Cmp(refill(l, cost)) != 0 || fraction >= l.Max {
			t.Fatalf("%s: %d refill in %d + %d/%d us", l, cost, micros, fraction, l.Max)
		}
	})
}
