package router

import (
	"testing"
	"time"
)

// TestForget: that most sentinels say something older counts only where for a while nobody confirms what is known.
func TestForget(t *testing.T) {
	old, now := sighting{epoch: 1, primary: "old:1"}, sighting{epoch: 5, primary: "new:1"}
	other := sighting{epoch: 2, primary: "other:1"}
	start := time.Now()
	for name, test := range map[string]struct {
		first, second []sighting
		after         time.Duration
		want          string
	}{
		"most, for long":          {[]sighting{old, old}, []sighting{old, old}, forgetAfter, "old:1"},
		"most, not for long":      {[]sighting{old, old}, []sighting{old, old}, forgetAfter - 1, "new:1"},
		"not most":                {[]sighting{old}, []sighting{old}, forgetAfter, "new:1"},
		"one confirms":            {[]sighting{old, old, now}, []sighting{old, old, now}, forgetAfter, "new:1"},
		"one confirms meanwhile":  {[]sighting{old, old, now}, []sighting{old, old}, forgetAfter, "new:1"},
		"no two agree":            {[]sighting{old, other}, []sighting{old, other}, forgetAfter, "new:1"},
		"nobody answers":          {nil, nil, forgetAfter, "new:1"},
		"nobody answers any more": {[]sighting{old, old}, nil, forgetAfter, "new:1"},
	} {
		f := newFollower(&Group{Name: "a", Master: "m", Sentinels: []string{"a:1", "b:1", "c:1"}}, Config{}.withDefaults(), nil,
			func(*follower, sighting) error { return nil })
		f.heard(now)
		f.heard(old)
		f.compare(test.first, start)
		f.compare(test.second, start.Add(test.after))
		if f.known.primary != test.want {
			t.Errorf("%s: %s", name, f.known.primary)
		}
	}
}
