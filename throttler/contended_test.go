package throttler_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// contended is what a backend says on which others were faster at every try.
func contended() error {
	return &backend.Error{Op: "take", Node: "node", Kind: backend.Contended, Err: errors.New("others were faster")}
}

// wantContended checks a decision on a request that the backend was too busy with others to decide.
func wantContended(t *testing.T, d throttler.Decision, retryAfter time.Duration) {
	t.Helper()
	if d.Allowed || d.Source != throttler.Unknown || d.Guarantee != throttler.Bounded || throttler.Reason(d.Cause) != "contended" ||
		d.RetryAfter != retryAfter || d.ResetAt.Sub(d.At) != retryAfter || d.Limit == (limit.Limit{}) {
		t.Errorf("%+v, want a denial by nobody for %v", d, retryAfter)
	}
}

// Whoever crowds at a key gets no more of it than the backend admits: it is well, and so it is no outage. Promise P1.
func TestContentionIsNoOutage(t *testing.T) {
	t.Parallel()
	const soon = 100 * time.Millisecond
	for _, policy := range failurePolicies {
		synctest.Test(t, func(t *testing.T) {
			ends, book, b, cfg := &notes{}, &throttlertesting.LogBook{}, newSpy(t, time.Now), policy.cfg
			recorder := newRecorder(t, insight.Config{WatchedKeys: 10})
			cfg.Backend, cfg.Policy, cfg.Logger = b, throttlertesting.One(limit.PerHour(10)), book.Logger()
			cfg.Observer = throttler.Observers(ends, recorder)
			th := throttlertesting.New(t, cfg)
			b.failWith(func(string) error { return contended() })
			for range 20 {
				d, err := th.Allow(t.Context(), "k")
				if cfg.Failure == throttler.FailError {
					if !errors.As(err, new(*backend.Error)) || d.Allowed {
						t.Errorf("%+v, %v, want the backend's error", d, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				wantContended(t, d, soon)
			}
			b.failWith(nil)
			time.Sleep(10 * time.Second)
			throttlertesting.Allow(t, th, "k")
			if len(ends.outages) != 0 || len(ends.ends) != 0 {
				t.Errorf("%v: observed the outages %+v and the ends %+v", cfg.Failure, ends.outages, ends.ends)
			}
			want := 1 // an operator may have to fix it: logged once a minute
			if cfg.Failure == throttler.FailError {
				want = 0 // the caller gets the error
			}
			if levels, text := book.Levels(), book.Text(); levels[slog.LevelWarn] != want || len(levels) != want ||
				strings.Contains(text, "failure_policy") {
				t.Errorf("%v: logged %v: %s", cfg.Failure, levels, text)
			}
			if top := recorder.TopDeniedInClear(1); len(top) != want || want > 0 && (top[0].Key != "k" || top[0].Denied != 20) {
				t.Errorf("%v: denied most: %+v, want to see where the crowd is", cfg.Failure, top)
			}
			if left := remaining(t, th, "k"); left != 9 {
				t.Errorf("%v: %d left, want 9", cfg.Failure, left)
			}
		})
	}
}

// A short RetryAfter of the configuration stays short, and Wait passes once the crowd has.
func TestWaitThroughContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const soon = 20 * time.Millisecond
		b := newSpy(t, time.Now)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), RetryAfter: soon})
		b.failWith(func(string) error { return contended() })
		wantContended(t, throttlertesting.Allow(t, th, "k"), soon)
		start := time.Now()
		time.AfterFunc(5*soon/2, func() { b.failWith(nil) })
		d, err := th.Wait(t.Context(), "k", 1)
		if took := time.Since(start); err != nil || !d.Allowed || took < 3*soon || took > 4*soon {
			t.Errorf("Wait = %+v, %v after %v, want the fourth try to pass", d, err, took)
		}
	})
}
