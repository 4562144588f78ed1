package featureflag_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

func TestLastGoodValueStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{value: value(10, 3)}
		var told notes
		f := open(t, featureflag.Config{Name: "x", Source: src, Default: 99, OnError: told.fail})
		expect(t, f, 10, local(3, 0), featureflag.ReasonSource)
		loaded := f.State().Loaded
		for _, tt := range []struct {
			value featureflag.Value
			err   error
			want  string
			is    error
		}{
			{err: errDown, want: `featureflag: flag "x": down`, is: errDown},
			{value: value(math.NaN(), 4), want: `featureflag: flag "x": percent = NaN: must be 0 to 100`},
			{value: value(100.5, 4), want: `featureflag: flag "x": percent = 100.5: must be 0 to 100`},
			{value: value(20, 1<<38), want: `featureflag: flag "x": version = 274877906944: must be 1 to 274877906943`},
			{value: value(20, 3), is: featureflag.ErrVersion, want: `featureflag: flag "x": changed without a larger version: ` +
				`percent 20, killed false, version 3 after percent 10, killed false, version 3`},
			{value: value(10, 2), is: featureflag.ErrVersion, want: `featureflag: flag "x": changed without a larger version: ` +
				`percent 10, killed false, version 2 after percent 10, killed false, version 3`},
		} {
			src.say(tt.value, tt.err)
			time.Sleep(10 * time.Second)
			expect(t, f, 10, local(3, 0), featureflag.ReasonSource)
			_, errs := told.take()
			if len(errs) != 1 || errs[0].Error() != tt.want || tt.is != nil && !errors.Is(errs[0], tt.is) {
				t.Errorf("errors %v, want %s", errs, tt.want)
			}
			if s := f.State(); s.Err != errs[0] || s.Loaded != loaded {
				t.Errorf("%+v, want the error and the time of the last success", s)
			}
		}
		time.Sleep(24 * time.Hour) // no StaleAfter: for ever
		expect(t, f, 10, local(3, 0), featureflag.ReasonSource)
		src.say(value(10, 3), nil)
		time.Sleep(10 * time.Second)
		expect(t, f, 10, local(3, 0), featureflag.ReasonSource)
		if s := f.State(); s.Err != nil || time.Since(s.Loaded) > 10*time.Second {
			t.Errorf("after a success: %+v", s)
		}
	})
}

func TestStaleFallsBackToTheDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{value: value(10, 3)}
		f := open(t, featureflag.Config{Name: "x", Source: src, Default: 70, Refresh: 10 * time.Second, StaleAfter: time.Minute})
		time.Sleep(30 * time.Second) // loads at 0, 10, 20, 30
		synctest.Wait()
		src.say(featureflag.Value{}, errDown)
		time.Sleep(time.Minute - 1)
		expect(t, f, 10, local(3, 0), featureflag.ReasonSource)
		time.Sleep(time.Nanosecond) // 60 s since the last success
		expect(t, f, 70, local(3, 1), featureflag.ReasonStale)
		time.Sleep(time.Hour)
		expect(t, f, 70, local(3, 1), featureflag.ReasonStale)
		if s := f.State(); !s.Stale || s.Generation != 3 || s.Err == nil {
			t.Errorf("stale: %+v", s)
		}

		src.say(value(10, 3), nil) // what it held all the time: other processes never left it
		time.Sleep(10 * time.Second)
		expect(t, f, 10, local(3, 2), featureflag.ReasonSource)
		time.Sleep(time.Hour)
		src.say(value(20, 4), errDown)
		time.Sleep(2 * time.Minute)
		expect(t, f, 70, local(3, 3), featureflag.ReasonStale)
		src.say(value(20, 4), nil)
		time.Sleep(10 * time.Second)
		expect(t, f, 20, local(4, 0), featureflag.ReasonSource)
	})
}

func TestKillSwitch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{value: value(50, 3)}
		f := open(t, featureflag.Config{Name: "x", Source: src, Default: 100, StaleAfter: time.Minute})
		next := func(percent float64, version uint64, killed bool, err error) {
			src.say(featureflag.Value{Percent: percent, Version: version, Killed: killed}, err)
			time.Sleep(10 * time.Second)
		}
		next(50, 4, true, nil)
		expect(t, f, 0, local(4, 0), featureflag.ReasonKilled)
		f.Override(featureflag.On)
		expect(t, f, 0, local(4, 0), featureflag.ReasonKilled)
		f.Override(featureflag.Clear)
		src.say(featureflag.Value{}, errDown)
		time.Sleep(time.Hour)
		expect(t, f, 0, local(4, 0), featureflag.ReasonKilled) // not Default: killed stays killed
		if !f.State().Stale {
			t.Error("not stale")
		}
		next(50, 5, false, nil)
		expect(t, f, 50, local(5, 0), featureflag.ReasonSource)

		// By hand, without a larger version: honoured, and told.
		next(50, 5, true, nil)
		expect(t, f, 0, local(5, 1), featureflag.ReasonKilled)
		if err := f.State().Err; !errors.Is(err, featureflag.ErrVersion) {
			t.Errorf("a kill without a larger version: %v", err)
		}
		next(60, 5, false, nil) // neither a kill nor what was there before: refused
		expect(t, f, 0, local(5, 1), featureflag.ReasonKilled)
		next(50, 5, false, nil)
		expect(t, f, 50, local(5, 2), featureflag.ReasonSource)
		next(10, 2, true, nil) // even a file from long ago
		expect(t, f, 0, local(5, 3), featureflag.ReasonKilled)
		next(70, 6, false, nil)
		expect(t, f, 70, local(6, 0), featureflag.ReasonSource)
	})
}

func TestOverride(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{value: value(50, 3)}
		f := open(t, featureflag.Config{Name: "x", Source: src})
		synctest.Wait()
		f.Override(featureflag.On)
		expect(t, f, 100, local(3, 1), featureflag.ReasonOverride)
		f.Override(featureflag.On) // no change
		expect(t, f, 100, local(3, 1), featureflag.ReasonOverride)
		f.Override(featureflag.Off)
		expect(t, f, 0, local(3, 2), featureflag.ReasonOverride)

		// A new generation is one departure away from where others are.
		src.say(value(80, 4), nil)
		time.Sleep(10 * time.Second)
		expect(t, f, 0, local(4, 1), featureflag.ReasonOverride)
		f.Override(featureflag.Override(99))
		expect(t, f, 80, local(4, 2), featureflag.ReasonSource)
		if o := f.State().Override; o != featureflag.Clear {
			t.Errorf("an unknown override is %d", o)
		}
		for o, want := range map[featureflag.Override]string{featureflag.Clear: "clear", featureflag.On: "on", featureflag.Off: "off"} {
			if f.Override(o); f.State().Override != o || o.String() != want {
				t.Errorf("%v is %v in State, want %s", o, f.State().Override, want)
			}
		}
	})
}

func TestLocalChangesNeverReachTheNextGeneration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := open(t, featureflag.Config{Name: "x", Source: featureflag.Static(50)})
		for range 1 << 13 {
			f.Override(featureflag.On)
			f.Override(featureflag.Off)
		}
		expect(t, f, 0, local(2, 0)-1, featureflag.ReasonOverride)
		f.Override(featureflag.On)
		expect(t, f, 100, local(2, 0)-1, featureflag.ReasonOverride)
	})
}

// A source without versions has its changes counted.
func TestFuncWithoutVersions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &fake{}
		f := open(t, featureflag.Config{Name: "x", Source: featureflag.Func(func(ctx context.Context) (featureflag.Value, error) {
			return src.Load(ctx, "")
		})})
		expect(t, f, 0, local(1, 0), featureflag.ReasonSource)
		for i, percent := range []float64{10, 10, 5, 5, 10} {
			src.say(value(percent, 0), nil)
			time.Sleep(10 * time.Second)
			expect(t, f, percent, local([]uint64{2, 2, 3, 3, 4}[i], 0), featureflag.ReasonSource)
		}
		src.say(value(10, 9), nil) // it has learned to count
		time.Sleep(10 * time.Second)
		expect(t, f, 10, local(9, 0), featureflag.ReasonSource)
	})
}
