package throttler_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

func TestOutageEnd(t *testing.T) {
	t.Parallel()
	for _, observed := range []bool{false, true} { // the two ways that a request takes
		synctest.Test(t, func(t *testing.T) {
			ends, book, b := &notes{}, &throttlertesting.LogBook{}, newSpy(t, time.Now)
			cfg := throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10_000)), Logger: book.Logger()}
			if observed {
				cfg.Observer = ends
			}
			th := throttlertesting.New(t, cfg)
			ask := func(fail bool, times int, every time.Duration) {
				for range times {
					b.failWith(func(string) error {
						if fail {
							return throttlertesting.Outage(false)
						}
						return nil
					})
					throttlertesting.Allow(t, th, "k")
					time.Sleep(every)
				}
			}
			var reported []string
			for _, step := range []struct {
				name string
				do   func()
				want string // the end that is reported; empty for none
			}{
				{"none", func() { ask(false, 10, time.Second) }, ""},
				{"one", func() { ask(true, 10, time.Second) }, ""},
				{"not over for sure", func() { ask(false, 4, time.Second) }, ""},
				{"over", func() { ask(false, 2, time.Second) }, "9s 10"},
				{"reported once", func() { ask(false, 10, time.Second) }, ""},
				{"too soon after the first to be logged", func() { ask(true, 2, time.Second) }, ""},
				{"nor of its end", func() { ask(false, 10, time.Second) }, ""},
				{"another minute", func() { time.Sleep(time.Minute) }, ""},
				{"some servers only", func() {
					for range 20 {
						ask(true, 1, time.Second)
						ask(false, 1, time.Second)
					}
				}, ""},
				{"is one outage", func() { ask(false, 10, time.Second) }, "38s 20"},
			} {
				step.do()
				if step.want != "" {
					reported = append(reported, step.want)
				}
				if n := book.Levels()[slog.LevelInfo]; n != len(reported) {
					t.Fatalf("%s: logged %d times, want %d:\n%s", step.name, n, len(reported), book.Text())
				}
			}
			for _, want := range reported {
				if want = "outage=" + strings.Replace(want, " ", " requests=", 1); !strings.Contains(book.Text(), want) {
					t.Errorf("the log doesn't say %s:\n%s", want, book.Text())
				}
			}
			var got []string
			for _, end := range ends.ends {
				got = append(got, fmt.Sprint(end.Duration, " ", end.Requests))
			}
			if observed && fmt.Sprint(got) != fmt.Sprint(reported) {
				t.Errorf("reported %q, want %q", got, reported)
			}
		})
	}
}

// What this process knows by itself says nothing about the backend.
func TestOutageEndsByTheBackendOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book, b := &throttlertesting.LogBook{}, &from{spy: newSpy(t, time.Now)}
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(100)), Logger: book.Logger()})
		b.failWith(func(string) error { return throttlertesting.Outage(false) })
		throttlertesting.Allow(t, th, "k")
		b.failWith(nil)
		time.Sleep(time.Minute)
		for _, b.source = range []throttler.Source{throttler.Leased, throttler.LocalDeny, throttler.Replica} {
			throttlertesting.Allow(t, th, "k")
		}
		if n := book.Levels()[slog.LevelInfo]; n != 0 {
			t.Errorf("over: %s", book.Text())
		}
		b.source = throttler.Primary
		var all sync.WaitGroup
		for range 20 { // many find it over at once
			all.Go(func() { throttlertesting.Allow(t, th, "k") })
		}
		all.Wait()
		if n := book.Levels()[slog.LevelInfo]; n != 1 {
			t.Errorf("logged %d ends, want 1", n)
		}
	})
}

// from is a spy whose verdicts come from elsewhere.
type from struct {
	*spy
	source throttler.Source
}

func (f *from) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := f.spy.Take(ctx, req)
	r.Source = f.source
	return r, err
}

// What AllowAll can't give back is no outage: one that follows is logged all the same, and so is its end.
func TestOutageAfterALostRefund(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ends, book, b := &notes{}, &throttlertesting.LogBook{}, newSpy(t, time.Now)
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName, Observer: ends, Logger: book.Logger(),
		})
		b.failWith(func(call string) error {
			if call == "refund" {
				return throttlertesting.Outage(false)
			}
			return nil
		})
		for range 2 { // logged once
			if d, err := th.AllowAll(t.Context(), []string{"a", "small", "small", "small", "small"}, 1); err != nil || d.Allowed {
				t.Fatalf("AllowAll = %+v, %v, want a denial", d, err)
			}
		}
		if n := book.Levels()[slog.LevelWarn]; n != 1 || len(ends.outages) != 0 {
			t.Errorf("%d warnings and %d outages of lost refunds, want one warning:\n%s", n, len(ends.outages), book.Text())
		}
		b.failWith(func(string) error { return throttlertesting.Outage(false) })
		throttlertesting.Allow(t, th, "k")
		b.failWith(nil)
		time.Sleep(10 * time.Second)
		throttlertesting.Allow(t, th, "k")
		if len(ends.outages) != 1 || len(ends.ends) != 1 {
			t.Errorf("observed %d outages and %d ends, want one of each:\n%s", len(ends.outages), len(ends.ends), book.Text())
		}
	})
}
