//go:build unix

package sdktest

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

// TestFlag follows a real flag through a change of its percentage, a source that fails, and a kill.
func TestFlag(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	var source atomic.Pointer[featureflag.Value] // nil while the source is away
	set := func(v featureflag.Value) { source.Store(&v) }
	set(featureflag.Value{Percent: 25, Version: 1})
	of := func(f featureflag.State) otelthrottle.Flag {
		return otelthrottle.Flag{
			Name: f.Name, Percent: f.Percent, Version: f.Version, Reason: string(f.Reason), Stale: f.Stale, Err: f.Err,
		}
	}
	flag, err := featureflag.New(featureflag.Config{
		Name: "to-redis", Refresh: time.Millisecond, StaleAfter: 2 * time.Second, Default: 5,
		Source: featureflag.Func(func(context.Context) (featureflag.Value, error) {
			if v := source.Load(); v != nil {
				return *v, nil
			}
			return featureflag.Value{}, errors.New("the source is away")
		}),
		OnChange: func(f featureflag.State) { s.observer.EmitFlag(of(f)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Close() })
	if err := s.observer.WatchFlag(func() otelthrottle.Flag { return of(flag.State()) }); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		change           func()
		reason, severity string
		percent          float64
		stale            float64
	}{
		{func() {}, "split", "INFO", 25, 0},
		{func() { set(featureflag.Value{Percent: 50, Version: 2}) }, "split", "INFO", 50, 0},
		{func() { source.Store(nil) }, "stale", "WARN", 5, 1},
		{func() { set(featureflag.Value{Percent: 50, Version: 3, Killed: true}) }, "disabled", "INFO", 0, 0},
	} {
		test.change()
		await(t, test.reason, func() bool { return len(s.events.all()) > i })
		e := s.events.all()[i]
		version, err := strconv.ParseUint(e.attrs["feature_flag.version"], 10, 64)
		if e.name != "feature_flag.evaluation" || e.severity != test.severity || err != nil || version == 0 ||
			e.attrs["feature_flag.key"] != "to-redis" || e.attrs["feature_flag.provider.name"] != "sluice" ||
			e.attrs["feature_flag.result.reason"] != test.reason ||
			e.attrs["feature_flag.result.value"] != strconv.FormatFloat(test.percent, 'f', -1, 64) {
			t.Errorf("%s: %+v", test.reason, e)
		}
		if failed := e.attrs["error.type"] != ""; failed != (test.stale == 1) || failed != (e.attrs["feature_flag.error.message"] != "") {
			t.Errorf("%s: %+v, want an error only while the source is away", test.reason, e)
		}
		s.want("sluice.flag.percent", map[string]float64{"to-redis": test.percent})
		s.want("sluice.flag.stale", map[string]float64{"to-redis": test.stale})
	}
}

func TestNothingToWatch(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	for what, err := range map[string]error{
		"lease": s.observer.WatchLease("x", nil), "dual": s.observer.WatchDual("x", nil), "router": s.observer.WatchRouter("x", nil),
		"nil lease": s.observer.WatchLease("x", (*lease.Lease)(nil)), "nil dual": s.observer.WatchDual("x", (*dual.Dual)(nil)),
		"nodes": s.observer.WatchNodes(nil), "flag": s.observer.WatchFlag(nil),
	} {
		if err == nil {
			t.Errorf("%s: no error of nothing to watch", what)
		}
	}
}
