package router

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestOutvoted: most sentinels with an older view prevail only if for a while none confirms the view in force.
func TestOutvoted(t *testing.T) {
	old, now := sentinelView{epoch: 1, primary: "old:1"}, sentinelView{epoch: 5, primary: "new:1"}
	other := sentinelView{epoch: 2, primary: "other:1"}
	start := time.Now()
	for name, test := range map[string]struct {
		first, second []sentinelView
		after         time.Duration
		want          string
	}{
		"most, for long":               {[]sentinelView{old, old}, []sentinelView{old, old}, outvotedFor, "old:1"},
		"most, not for long":           {[]sentinelView{old, old}, []sentinelView{old, old}, outvotedFor - 1, "new:1"},
		"not most":                     {[]sentinelView{old}, []sentinelView{old}, outvotedFor, "new:1"},
		"one confirms":                 {[]sentinelView{old, old, now}, []sentinelView{old, old, now}, outvotedFor, "new:1"},
		"one confirms meanwhile":       {[]sentinelView{old, old, now}, []sentinelView{old, old}, outvotedFor, "new:1"},
		"no two agree":                 {[]sentinelView{old, other}, []sentinelView{old, other}, outvotedFor, "new:1"},
		"no sentinel answers":          {nil, nil, outvotedFor, "new:1"},
		"no sentinel answers any more": {[]sentinelView{old, old}, nil, outvotedFor, "new:1"},
	} {
		f := newSentinelWatcher(&Group{Name: "a", Master: "m", Sentinels: []string{"a:1", "b:1", "c:1"}}, Config{}.withDefaults(), nil,
			func(*sentinelWatcher, sentinelView) error { return nil })
		f.offer(now)
		f.offer(old)
		f.reconcile(test.first, start)
		f.reconcile(test.second, start.Add(test.after))
		if f.current.primary != test.want {
			t.Errorf("%s: %s", name, f.current.primary)
		}
	}
}

// TestUnusableViewIsReportedNowAndThen: a primary that Config.Node refuses is reported at most every ten seconds, however often
// sentinels name it.
func TestUnusableViewIsReportedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := newEvents(func(Event) {})
		refuse := func(*sentinelWatcher, sentinelView) error { return errors.New("no such node") }
		w := newSentinelWatcher(&Group{Name: "a", Master: "m"}, Config{}.withDefaults(), events, refuse)
		for range 21 {
			w.offer(sentinelView{epoch: 1, primary: "127.0.0.1:2"})
			time.Sleep(time.Second)
		}
		if n := len(events.queue); n != 3 {
			t.Errorf("%d events in 20 seconds", n)
		}
	})
}
