package featureflag_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/keyhash"
)

const million = 1_000_000 / scale

func keysOf(shape string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf(shape, i)
	}
	return keys
}

// users are a million keys.
var users = sync.OnceValue(func() []string { return keysOf("user:%d", million) })

func count(s featureflag.State, keys []string) int {
	n := 0
	for _, key := range keys {
		if s.Enabled(key) {
			n++
		}
	}
	return n
}

// Keys fall into 128 equal parts, found by bisection among flags of one name. With 127 degrees of freedom chi-square is
// 127 on average with a deviation of 16: five of them away are one case in a million.
func TestKeysAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	const parts = 128
	for name, keys := range map[string][]string{
		"use-redis":   users(),
		"b":           keysOf("%d", million/10),
		"tenants/new": keysOf("tenant/%08x/orders", million/10),
	} {
		var below [parts]featureflag.State
		for i := range below {
			below[i] = at(t, name, 100*float64(i)/parts)
		}
		var n [parts]int
		for _, key := range keys {
			part := 0
			for half := parts / 2; half > 0; half /= 2 {
				if !below[part+half].Enabled(key) {
					part += half
				}
			}
			n[part]++
		}
		mean, chi := float64(len(keys))/parts, 0.0
		for _, n := range n {
			chi += (float64(n) - mean) * (float64(n) - mean) / mean
		}
		if t.Logf("%q: chi-square %.1f", name, chi); chi < 127-5*16 || chi > 127+5*16 {
			t.Errorf("%q: chi-square of %d keys in %d parts is %.1f, want about 127", name, len(keys), parts, chi)
		}
	}
}

func TestAThousandthOfAPercentCounts(t *testing.T) {
	t.Parallel()
	const step = scale * 0.001 // 10 keys
	for _, from := range []float64{0, 12.345, 49.99, 100 - 20*step} {
		to := min(from+20*step, 100)
		first, last := at(t, "use-redis", from), at(t, "use-redis", to)
		total := 0
		var between []string // a few hundred
		for _, key := range users() {
			if last.Enabled(key) {
				total++
				if !first.Enabled(key) {
					between = append(between, key)
				}
			}
		}
		if want := to * million / 100; math.Abs(float64(total)-want) > 5*math.Sqrt(want) {
			t.Errorf("%.3f %%: %d keys of %d, want about %.0f", to, total, million, want)
		}
		before := 0
		for i := 1; i <= 20; i++ {
			percent := min(from+float64(i)*step, 100)
			now := count(at(t, "use-redis", percent), between)
			if added := now - before; added < 1 || added > 30 {
				t.Errorf("%.3f %%: %d more keys of %d than at %v less, want about 10", percent, added, million, step)
			}
			before = now
		}
	}
	if got := count(at(t, "use-redis", 0), users()); got != 0 {
		t.Errorf("0 %%: %d keys", got)
	}
	if got := count(at(t, "use-redis", 100), users()); got != million {
		t.Errorf("100 %%: %d keys of %d", got, million)
	}
}

func TestRaisingOnlyAddsKeys(t *testing.T) {
	t.Parallel()
	keys := keysOf("user:%d", 1000)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "name")
		low := rapid.Float64Range(0, 100).Draw(t, "low")
		high := rapid.OneOf(
			rapid.Float64Range(low, 100),
			rapid.Just(math.Min(math.Nextafter(low, 200), 100)),
			rapid.Just(math.Min(low+0.001, 100)),
		).Draw(t, "high")
		before, after := at(t, name, low), at(t, name, high)
		for _, key := range append(keys, rapid.String().Draw(t, "key")) {
			if before.Enabled(key) && !after.Enabled(key) {
				t.Fatalf("%q lost %q by a raise from %v to %v", name, key, low, high)
			}
		}
	})
}

func TestEdges(t *testing.T) {
	t.Parallel()
	keys := keysOf("%d", million/10)
	for _, percent := range []float64{0, math.Copysign(0, -1), math.SmallestNonzeroFloat64} {
		s := at(t, "edge", percent)
		if n := count(s, keys); n != 0 || math.Signbit(s.Percent) {
			t.Errorf("%v %%: %d keys at %v %%", percent, n, s.Percent)
		}
	}
	if n := count(at(t, "edge", math.Nextafter(100, 0)), keys); n != len(keys) {
		t.Errorf("just below 100 %%: %d keys of %d", n, len(keys))
	}
}

// Two flags of 50 % make four quarters of all keys, and so do a flag and a ring: chi-square with one degree of freedom,
// above 24 in one case in a million.
func TestFlagsAreIndependent(t *testing.T) {
	t.Parallel()
	keys := users()
	check := func(what string, percent float64, first, second func(string) bool) {
		t.Helper()
		var n [2][2]float64
		for _, key := range keys {
			i, j := 0, 0
			if first(key) {
				i = 1
			}
			if second(key) {
				j = 1
			}
			n[i][j]++
		}
		det := n[0][0]*n[1][1] - n[0][1]*n[1][0]
		chi := det * det * million / ((n[0][0] + n[0][1]) * (n[1][0] + n[1][1]) * (n[0][0] + n[1][0]) * (n[0][1] + n[1][1]))
		if !(chi < 24) {
			t.Errorf("%s at %v %%: chi-square %.1f: %.0f", what, percent, chi, n)
		}
	}
	for _, names := range [][2]string{{"use-redis", "use-redis2"}, {"a", "b"}, {"new-limits", "smit-wen"}} {
		for _, percent := range []float64{50, 3} {
			a, b := at(t, names[0], percent), at(t, names[1], percent)
			check(names[0]+" and "+names[1], percent, a.Enabled, b.Enabled)
		}
	}
	a := at(t, "use-redis", 50)
	for _, ring := range []uint64{0, 1, 42} { // seeds
		check(fmt.Sprint("use-redis and ring ", ring), 50, a.Enabled, func(key string) bool {
			return keyhash.Mix(keyhash.Sum(key), ring)>>63 == 0
		})
	}
}

// What these keys answer at 10, 20, ... 90 % is the same in every process and every release.
func TestAnswersNeverChange(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]map[string]string{
		"use-redis": {
			"":             "-------++",
			"user:1":       "--------+",
			"user:2":       "----+++++",
			"user:42":      "-------++",
			"198.51.100.7": "----+++++",
			"\xff\xfe":     "-------++",
		},
		"new-limits": {
			"":         "--------+",
			"user:1":   "+++++++++",
			"user:2":   "--+++++++",
			"user:42":  "----+++++",
			"tenant/ä": "---------",
			"a\x00b":   "-++++++++",
		},
	} {
		for key, want := range keys {
			var got strings.Builder
			for percent := 10.0; percent < 100; percent += 10 {
				s := at(t, name, percent)
				if s.Enabled(key) {
					got.WriteByte('+')
				} else {
					got.WriteByte('-')
				}
			}
			if got.String() != want {
				t.Errorf("%q, %q: %q, want %q: a release that moves keys moves their counts", name, key, got.String(), want)
			}
		}
	}
}
