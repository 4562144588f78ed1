package featureflag_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

var errDown = errors.New("down")

// fake is a source that says what a test tells it.
type fake struct {
	mu    sync.Mutex // guards what follows
	value featureflag.Value
	err   error
	loads int
}

func (s *fake) Load(context.Context, string) (featureflag.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
	return s.value, s.err
}

func (s *fake) say(v featureflag.Value, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.err = v, err
}

func value(percent float64, version uint64) featureflag.Value {
	return featureflag.Value{Percent: percent, Version: version}
}

// local is the version of the n-th local change since a generation.
func local(generation, n uint64) uint64 { return generation<<14 + n }

func expect(t *testing.T, f *featureflag.Flag, percent float64, version uint64, reason featureflag.Reason) {
	t.Helper()
	synctest.Wait()
	s := f.State()
	if s.Percent != percent || s.Version != version || s.Reason != reason {
		t.Errorf("%v %%, version %d+%d, %q; want %v %%, version %d+%d, %q", s.Percent, s.Version>>14, s.Version&(1<<14-1),
			s.Reason, percent, version>>14, version&(1<<14-1), reason)
	}
	on := 0
	for i := range 1000 {
		key := fmt.Sprint("user:", i)
		enabled, v := f.Decide(key)
		if enabled != f.Enabled(key) || enabled != s.Enabled(key) || v != s.Version {
			t.Fatalf("%q: Decide says %t at %d, Enabled %t, State %t at %d", key, enabled, v, f.Enabled(key), s.Enabled(key), s.Version)
		}
		if enabled {
			on++
		}
	}
	if off := math.Abs(float64(on) - 10*percent); off > 80 || (percent == 0 || percent == 100) && off != 0 {
		t.Errorf("%d of 1000 keys at %v %%", on, percent)
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  featureflag.Config
		want []string
	}{
		{"zero", featureflag.Config{}, []string{
			`featureflag: Name = "": must be 1 to 128 of A-Z a-z 0-9 _ - . : /`,
			`featureflag: Source = nil: must not be nil`,
		}},
		{"everything", featureflag.Config{
			Name: "use redis", Source: featureflag.Static(100.001), Default: math.NaN(),
			Refresh: -time.Second, Timeout: -1, StaleAfter: time.Second,
		}, []string{
			`featureflag: Name = "use redis": must be 1 to 128 of A-Z a-z 0-9 _ - . : /`,
			`featureflag: Source: percent = 100.001: must be 0 to 100`,
			`featureflag: Default = NaN: must be 0 to 100`,
			`featureflag: Refresh = -1s: must be at least 1ms, or 0 for 10s`,
			`featureflag: Timeout = -1ns: must not be negative; 0 is 1s`,
		}},
		{"stale too early", featureflag.Config{
			Name: strings.Repeat("n", 129), Source: featureflag.Static(-0.001), Default: math.Inf(1), StaleAfter: 10 * time.Second,
		}, []string{
			`featureflag: Name = "` + strings.Repeat("n", 64) + `"...: must be 1 to 128 of A-Z a-z 0-9 _ - . : /`,
			`featureflag: Source: percent = -0.001: must be 0 to 100`,
			`featureflag: Default = +Inf: must be 0 to 100`,
			`featureflag: StaleAfter = 10s: must be more than Refresh, which is 10s`,
		}},
		{"a typed nil", featureflag.Config{Name: "x", Source: (*anySource)(nil)}, []string{`featureflag: Source = nil: must not be nil`}},
		{"sources", featureflag.Config{Name: "x", Source: featureflag.Func(nil)}, []string{
			`featureflag: Source: function = nil: must not be nil`,
		}},
		{"file", featureflag.Config{Name: "x", Source: featureflag.File("")}, []string{
			`featureflag: Source: path = "": must not be empty`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := featureflag.New(tt.cfg)
			if f != nil || err == nil {
				t.Fatalf("New = %v, %v, want an error", f, err)
			}
			if got, want := err.Error(), strings.Join(tt.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if e := (*featureflag.Error)(nil); !errors.As(err, &e) || e.Field == "" || e.Value == "" || e.Bound == "" {
				t.Errorf("errors.As found %#v", e)
			}
		})
	}
}

func TestStatic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := open(t, featureflag.Config{Name: "x", Source: featureflag.Static(25), Default: 100})
		expect(t, f, 25, local(1, 0), featureflag.ReasonSource) // and not Default for a moment
		if err := f.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		expect(t, f, 25, local(1, 0), featureflag.ReasonSource)
	})
}

func TestDefaultUntilTheFirstLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{err: errDown}
		f := open(t, featureflag.Config{Name: "x", Source: src, Default: 40, StaleAfter: time.Minute})
		expect(t, f, 40, 0, featureflag.ReasonDefault)

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := f.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errDown) {
			t.Errorf("Ready without a load: %v", err)
		}
		expect(t, f, 40, 0, featureflag.ReasonDefault)
		if s := f.State(); s.Stale || !s.Loaded.IsZero() || !errors.Is(s.Err, errDown) || s.Generation != 0 {
			t.Errorf("before the first load: %+v", s)
		}
		go func() {
			time.Sleep(time.Minute)
			src.say(value(60, 7), nil)
		}()
		start := time.Now()
		if err := f.Ready(t.Context()); err != nil || time.Since(start) < time.Minute {
			t.Errorf("Ready after %v: %v", time.Since(start), err)
		}
		expect(t, f, 60, local(7, 0), featureflag.ReasonSource)
		if s := f.State(); s.Name != "x" || s.Err != nil || s.Loaded.IsZero() || s.Generation != 7 {
			t.Errorf("after the first load: %+v", s)
		}
	})
}

func TestReadyWithoutALoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := open(t, featureflag.Config{Name: "x", Source: featureflag.Func(func(ctx context.Context) (featureflag.Value, error) {
			<-ctx.Done()
			return featureflag.Value{}, ctx.Err()
		})})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.Ready(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Ready with a cancelled context: %v", err)
		}
		var none context.Context
		if e := (*featureflag.Error)(nil); !errors.As(f.Ready(none), &e) {
			t.Error("Ready without a context is accepted")
		}
		done := make(chan error)
		go func() { done <- f.Ready(t.Context()) }()
		synctest.Wait()
		f.Close()
		if err := <-done; !errors.Is(err, featureflag.ErrClosed) {
			t.Errorf("Ready of a closed flag: %v", err)
		}
	})
}

func TestAChangeIsSeenWithinRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{value: value(10, 1)}
		f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: 5 * time.Second})
		expect(t, f, 10, local(1, 0), featureflag.ReasonSource)
		time.Sleep(time.Second)
		src.say(value(20, 2), nil)
		time.Sleep(4*time.Second - 1)
		expect(t, f, 10, local(1, 0), featureflag.ReasonSource)
		time.Sleep(time.Nanosecond)
		expect(t, f, 20, local(2, 0), featureflag.ReasonSource)
		src.say(value(20, 9), nil) // the same percentage is a change, too, where its version says so
		time.Sleep(5 * time.Second)
		expect(t, f, 20, local(9, 0), featureflag.ReasonSource)
		if src.loads != 3 {
			t.Errorf("%d loads in 10 s, want 3", src.loads)
		}
	})
}

func TestCallbacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{value: value(50, 3)}
		var f *featureflag.Flag
		var told notes
		opened := make(chan struct{})
		f = open(t, featureflag.Config{
			Name: "x", Source: src, Default: 50, StaleAfter: 65 * time.Second,
			OnChange: func(s featureflag.State) {
				<-opened
				f.Override(s.Override) // a lock that were held would not be there to take
				if f.State() != s {
					t.Errorf("told of %+v, it is %+v", s, f.State())
				}
				told.change(s)
			},
			OnError: func(err error) {
				<-opened
				f.Override(f.State().Override)
				told.fail(err)
			},
		})
		close(opened)
		check := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if lines, _ := told.take(); strings.Join(lines, "\n") != strings.Join(want, "\n") {
				t.Errorf("told\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
			}
		}
		check("50% 3+0 split")
		time.Sleep(11 * time.Second) // a load that changes nothing is not told
		check()
		f.Override(featureflag.Off)
		check("0% 3+1 static")
		f.Override(featureflag.Clear)
		check("50% 3+2 split")
		src.say(value(50, 4), nil)
		time.Sleep(10 * time.Second)
		check("50% 4+0 split")
		src.say(value(50, 4), errDown)
		time.Sleep(20 * time.Second)
		check(`featureflag: flag "x": down`, `featureflag: flag "x": down`)
		time.Sleep(45 * time.Second) // stale, at the same percentage
		down := `featureflag: flag "x": down`
		check(down, down, down, down, "50% 4+0 stale")
		src.say(value(1, 5), nil)
		time.Sleep(10 * time.Second)
		check("1% 5+0 split")
		src.say(value(0, 6), nil)
		time.Sleep(10 * time.Second)
		check("0% 6+0 split")
		src.say(featureflag.Value{Version: 6, Killed: true}, nil) // the same answers for another reason
		time.Sleep(10 * time.Second)
		check(`featureflag: flag "x": changed without a larger version: percent 0, killed true, version 6 `+
			`after percent 0, killed false, version 6`, "0% 6+0 disabled")
		src.say(value(1, 7), nil)
		time.Sleep(10 * time.Second)
		check("1% 7+0 split")
		f.Close()
		f.Override(featureflag.On) // still obeyed, no longer told
		expect(t, f, 100, local(7, 1), featureflag.ReasonOverride)
		check()
	})
}

func TestLoadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told notes
		f := open(t, featureflag.Config{
			Name: "x", Timeout: 3 * time.Second,
			Source: featureflag.Func(func(ctx context.Context) (featureflag.Value, error) {
				<-ctx.Done()
				return featureflag.Value{}, ctx.Err()
			}),
			OnError: told.fail,
		})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if _, errs := told.take(); len(errs) != 1 || !errors.Is(errs[0], context.DeadlineExceeded) {
			t.Errorf("errors after Timeout: %v", errs)
		}
		time.Sleep(8 * time.Second) // in the middle of the next load
		start := time.Now()
		f.Close()
		f.Close()
		if _, errs := told.take(); time.Since(start) != 0 || len(errs) != 0 {
			t.Errorf("Close took %v; errors %v, want none for the load that it cut short", time.Since(start), errs)
		}
		if err := f.State().Err; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the state holds %v, want what the last load said", err)
		}
	})
}

// A source that doesn't honour its context is waited for, and what it says too late is of no interest.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := open(t, featureflag.Config{
			Name: "x", Source: featureflag.Func(func(context.Context) (featureflag.Value, error) {
				time.Sleep(5 * time.Second)
				return value(50, 1), nil
			}),
			OnChange: func(s featureflag.State) { t.Errorf("told of %+v", s) },
		})
		synctest.Wait()
		f.Close()
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("Close took %v, want 5s", took)
		}
		if s := f.State(); s.Version != 0 || s.Err != nil {
			t.Errorf("after Close: %+v", s)
		}
	})
}

// What a load returns is as old as its beginning.
func TestLoadedIsWhenTheLoadBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &slow{}
		src.say(value(10, 1), nil)
		start := time.Now()
		f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never, StaleAfter: 2 * never, Default: 90})
		if err := f.Ready(t.Context()); err != nil || time.Since(start) != time.Second/2 {
			t.Errorf("Ready after %v: %v", time.Since(start), err)
		}
		if s := f.State(); s.Loaded != start {
			t.Errorf("loaded %v after the start", s.Loaded.Sub(start))
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	src := &fake{value: value(50, 1)}
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: time.Millisecond, StaleAfter: 3 * time.Millisecond})
	if err := f.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var last uint64
			for range 2000 {
				s := f.State()
				on, version := f.Decide("user:1")
				if s.Version < last || version < s.Version || on && version == s.Version && s.Percent == 0 {
					t.Errorf("version %d and %d after %d", s.Version, version, last)
				}
				last = version
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for i := range 5000 {
				f.Override(featureflag.Override(i % 3))
			}
		})
	}
	for i := range uint64(100) {
		src.say(value(float64(i), i), []error{nil, errDown}[i%2])
	}
	wg.Go(func() { f.Close() })
	wg.Go(func() { f.Close() })
	wg.Wait()
}

// anySource is a Source that is only there to be nil.
type anySource struct{ featureflag.Source }
