package callguard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/callguard"
)

var errClosed = errors.New("closed")

func guard(cfg callguard.Config) *callguard.Guard {
	cfg.Timeout, cfg.Closed = time.Second, errClosed
	cfg.Wrap = func(_ context.Context, op string, err error) error { return fmt.Errorf("%s: %w", op, err) }
	return callguard.New(cfg)
}

// TestDo: a caller returns by the deadline and by the end of its context, and Close waits for the call that it leaves.
func TestDo(t *testing.T) {
	for name, test := range map[string]struct {
		cfg    callguard.Config
		cancel time.Duration // 0 for a caller who can't
		ends   time.Duration // the call
		want   time.Duration // the caller
		err    error
	}{
		"done":                       {ends: time.Millisecond, want: time.Millisecond},
		"cancelled":                  {cancel: time.Millisecond, ends: time.Minute, want: time.Millisecond, err: context.Canceled},
		"cancelled, keeps its conn":  {callguard.Config{KeepsConn: true}, time.Millisecond, time.Minute, time.Millisecond, context.Canceled},
		"too long":                   {cancel: time.Minute, ends: time.Minute, want: time.Second, err: context.DeadlineExceeded},
		"too long, no cancellation":  {callguard.Config{IgnoresContext: true}, 0, time.Minute, time.Second, context.DeadlineExceeded},
		"too long, honours deadline": {ends: time.Minute, want: time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := guard(test.cfg)
			ctx := context.Background()
			if test.cancel > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
				time.AfterFunc(test.cancel, cancel)
			}
			start := time.Now()
			_, err := callguard.Do(ctx, g, "op", g.Deadline(), func(context.Context) (int, error) {
				time.Sleep(test.ends)
				return 1, nil
			})
			if took := time.Since(start); took != test.want || !errors.Is(err, test.err) {
				t.Errorf("%s: %v after %s, want %v after %s", name, err, took, test.err, test.want)
			}
			if !g.Close() || g.Close() || time.Since(start) != max(test.want, test.ends) {
				t.Errorf("%s: closed after %s", name, time.Since(start))
			}
			if _, err := callguard.Do(ctx, g, "op", g.Deadline(), func(context.Context) (int, error) { return 1, nil }); err != errClosed {
				t.Errorf("%s: after Close %v", name, err)
			}
		})
	}
}

// TestMaxCalls: a call that waits for others until its deadline was not sent.
func TestMaxCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guard(callguard.Config{MaxCalls: 1, IgnoresContext: true})
		slow := func(context.Context) (int, error) { time.Sleep(time.Minute); return 1, nil }
		if _, err := callguard.Do(context.Background(), g, "op", g.Deadline(), slow); callguard.IsUnsent(err) {
			t.Errorf("a call that was sent: %v", err)
		}
		if _, err := callguard.Do(context.Background(), g, "op", g.Deadline(), slow); !callguard.IsUnsent(err) {
			t.Errorf("a call that was not sent: %v", err)
		}
		g.Close()
	})
}
