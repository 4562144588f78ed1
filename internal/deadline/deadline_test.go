package deadline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/deadline"
)

// late is a context whose timer has not fired although its deadline is over.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now(), true }

func TestEnded(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, test := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"no end":                    {context.Background(), nil},
		"cancelled":                 {cancelled, context.Canceled},
		"deadline, timer not fired": {late{context.Background()}, context.DeadlineExceeded},
		"cancelled before that":     {late{cancelled}, context.Canceled},
	} {
		if got := deadline.Ended(test.ctx); !errors.Is(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := deadline.Sleep(t.Context(), time.Second); err != nil || time.Since(start) != time.Second {
			t.Errorf("slept for %v, %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := deadline.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("slept for %v, %v", time.Since(start), err)
		}
	})
}
