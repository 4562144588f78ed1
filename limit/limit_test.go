package limit_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// refused is every problem that err holds, each as "field = value", with the bound it names.
func refused(t *testing.T, err error) (problems, bounds []string) {
	t.Helper()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			p, b := refused(t, err)
			problems, bounds = append(problems, p...), append(bounds, b...)
		}
		return problems, bounds
	}
	if err == nil {
		return nil, nil
	}
	var e *limit.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is a %T, want a *limit.Error", err, err)
	}
	for _, part := range []string{e.Field, e.Value, e.Bound} {
		if part == "" || !strings.Contains(e.Error(), part) {
			t.Errorf("%q does not name field %q, value %q and bound %q", e, e.Field, e.Value, e.Bound)
		}
	}
	return []string{e.Field + " = " + e.Value}, []string{e.Bound}
}

func TestLimitValidate(t *testing.T) {
	const day = 24 * time.Hour
	long := strings.Repeat("n", 33)
	custom := func(change func(l *limit.Limit)) limit.Limit {
		l := limit.Fixed(1, time.Second)
		change(&l)
		return l
	}
	for _, test := range []struct {
		name  string
		limit limit.Limit
		want  []string // problems
		bound string   // in the first of them
	}{
		{"fixed", limit.Fixed(1, time.Millisecond), nil, ""},
		{"fixed, all it can", limit.Fixed(limit.MaxCount, limit.MaxWindow), nil, ""},
		{"aligned", limit.PerDay(5).Aligned(), nil, ""},
		{"staggered", limit.PerDay(5).Staggered(), nil, ""},
		{"sliding", limit.Sliding(240, time.Hour, time.Minute), nil, ""},
		{"sliding, one sub-bucket", limit.Sliding(1, time.Millisecond, time.Millisecond), nil, ""},
		{"sliding, 120 sub-buckets", limit.Sliding(1<<46, time.Hour, 30*time.Second), nil, ""},
		{"bucket", limit.TokenBucket(10, time.Second, 20), nil, ""},
		{"bucket, a microsecond", limit.TokenBucket(1<<52, time.Microsecond, limit.MaxCount), nil, ""},
		{"bucket, as slow as it can", limit.TokenBucket(1, limit.MaxWindow, 1), nil, ""},
		{"bucket, as long as it can", limit.TokenBucket(1000, time.Second, int64(limit.MaxWindow/time.Millisecond)), nil, ""},
		{"named", limit.PerDay(5).Named("a-z_09"), nil, ""},
		{"named, 32 letters", limit.PerDay(5).Named(long[:32]), nil, ""},

		{"max 0", limit.Fixed(0, time.Second), []string{"max = 0"}, "9007199254740991"},
		{"max negative", limit.Sliding(-1, time.Second, time.Second), []string{"max = -1"}, "from 1"},
		{"max overflowing", limit.Fixed(1<<53, time.Second), []string{"max = 9007199254740992"}, "9007199254740991"},
		{"max, sliding", limit.Sliding(1<<46+1, time.Second, time.Second), []string{"max = 70368744177665"}, "70368744177664"},
		{"max, bucket", limit.TokenBucket(1<<52+1, time.Second, 1), []string{"max = 4503599627370497"}, "4503599627370496"},
		{"rate 0", limit.TokenBucket(0, time.Second, 1), []string{"max = 0"}, "from 1"},
		{"rate negative", limit.TokenBucket(math.MinInt64, time.Second, 1), []string{"max = -9223372036854775808"}, "from 1"},

		{"window 0", limit.Fixed(1, 0), []string{"window = 0s"}, "1ms"},
		{"window negative", limit.Fixed(1, -time.Second), []string{"window = -1s"}, "1ms"},
		{"window too long", limit.Fixed(1, limit.MaxWindow+time.Millisecond), []string{"window = 87840h0m0.001s"}, "87840h"},
		{"window below a millisecond", limit.Fixed(1, time.Microsecond), []string{"window = 1µs"}, "1ms"},
		{"window of 1.5 ms", limit.Fixed(1, 1500*time.Microsecond), []string{"window = 1.5ms"}, "whole number of 1ms"},
		{"window, bucket", limit.TokenBucket(1, 1500*time.Nanosecond, 1), []string{"window = 1.5µs"}, "whole number of 1µs"},
		{"window, largest", limit.Fixed(1, math.MaxInt64), []string{"window = 2562047h47m16.854775807s"}, "87840h"},

		{"precision 0", limit.Sliding(1, time.Second, 0), []string{"precision = 0s"}, "1ms"},
		{"precision negative", limit.Sliding(1, time.Second, -time.Second), []string{"precision = -1s"}, "1ms"},
		{"precision of 1.5 ms", limit.Sliding(1, 3*time.Millisecond, 1500*time.Microsecond), []string{"precision = 1.5ms"}, "1ms"},
		{"precision not dividing", limit.Sliding(1, time.Second, 300*time.Millisecond), []string{"precision = 300ms"}, "divide the window of 1s"},
		{"precision above window", limit.Sliding(1, time.Second, 2*time.Second), []string{"precision = 2s"}, "divide the window of 1s"},
		{"121 sub-buckets", limit.Sliding(1, 121*time.Second, time.Second), []string{"precision = 1s"}, "at most 120 sub-buckets"},
		{"precision, fixed", custom(func(l *limit.Limit) { l.Precision = 1 }), []string{"precision = 1ns"}, "sliding"},

		{"burst 0", limit.TokenBucket(1, time.Second, 0), []string{"burst = 0"}, "9007199254740991"},
		{"burst negative", limit.TokenBucket(1, time.Second, -5), []string{"burst = -5"}, "from 1"},
		{"burst overflowing", limit.TokenBucket(1<<52, time.Second, 1<<53), []string{"burst = 9007199254740992"}, "9007199254740991"},
		{"burst never refilled", limit.TokenBucket(1, day, 3661), []string{"burst = 3661"}, "87840h"},
		{"burst never refilled, largest", limit.TokenBucket(1, limit.MaxWindow, limit.MaxCount), []string{"burst = 9007199254740991"}, "87840h"},
		{"burst, fixed", custom(func(l *limit.Limit) { l.Burst = 1 }), []string{"burst = 1"}, "bucket"},

		{"aligned sliding", limit.Sliding(1, time.Second, time.Second).Aligned(), []string{"alignment = aligned"}, "fixed"},
		{"staggered bucket", limit.TokenBucket(1, time.Second, 1).Staggered(), []string{"alignment = staggered"}, "fixed"},
		{"unknown alignment", custom(func(l *limit.Limit) { l.Alignment = 3 }), []string{"alignment = alignment(3)"}, "unknown"},
		{"unknown algorithm", custom(func(l *limit.Limit) { l.Algorithm = 9 }), []string{"algorithm = algorithm(9)"}, "unknown"},

		{"name of 33 letters", limit.PerDay(5).Named(long), []string{`name = "` + long + `"`}, "{1,32}"},
		{"name with a capital", limit.PerDay(5).Named("Daily"), []string{`name = "Daily"`}, "[a-z0-9_-]"},
		{"name with a line break", limit.PerDay(5).Named("a\nb"), []string{`name = "a\nb"`}, "[a-z0-9_-]"},

		{"zero", limit.Limit{}, []string{"max = 0", "window = 0s", "algorithm = algorithm(0)"}, "from 1"},
		{"all at once", limit.Limit{
			Name: "Ä", Max: -1, Burst: 3, Window: -time.Second, Precision: -1, Algorithm: limit.SlidingWindow, Alignment: 7,
		}, []string{
			`name = "Ä"`, "max = -1", "window = -1s", "alignment = alignment(7)", "alignment = alignment(7)",
			"burst = 3", "precision = -1ns",
		}, "[a-z0-9_-]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, bounds := refused(t, test.limit.Validate())
			if !slices.Equal(got, test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			if len(got) > 0 && !strings.Contains(bounds[0], test.bound) {
				t.Errorf("the bound is %q, want %q in it", bounds[0], test.bound)
			}
		})
	}
}

func TestPolicyValidate(t *testing.T) {
	many := func(n int) (limits []limit.Limit) {
		for i := range n {
			limits = append(limits, limit.Fixed(1, time.Duration(i+1)*time.Second))
		}
		return limits
	}
	long := strings.Repeat("n", 1000)
	for _, test := range []struct {
		name   string
		policy limit.Policy
		want   []string
	}{
		{"one", limit.Policy{Limits: many(1)}, nil},
		{"16", limit.Policy{Name: "api-v1_x", Limits: many(16)}, nil},
		{"the same window under every algorithm", limit.Policy{Limits: []limit.Limit{
			limit.PerSecond(1), limit.PerSecond(1).Aligned(), limit.PerSecond(1).Staggered(),
			limit.Sliding(1, time.Second, time.Second), limit.Sliding(1, time.Second, 500*time.Millisecond),
			limit.TokenBucket(1, time.Second, 1),
		}}, nil},
		{"zero", limit.Policy{}, []string{"limits = 0"}},
		{"17", limit.Policy{Limits: many(17)}, []string{"limits = 17"}},
		{"name", limit.Policy{Name: "a b", Limits: many(1)}, []string{`policy name = "a b"`}},
		{"long name", limit.Policy{Name: long, Limits: many(1)}, []string{`policy name = "` + long[:64] + `..."`}},
		{"the same name twice", limit.Policy{Limits: []limit.Limit{
			limit.PerSecond(1).Named("a"), limit.PerMinute(1), limit.PerHour(1).Named("a"),
		}}, []string{`policy "": limit 3: name = "a"`}},
		{"the same window twice", limit.Policy{Limits: []limit.Limit{
			limit.PerSecond(1), limit.Fixed(5, 1000*time.Millisecond),
		}}, []string{`policy "": limit 2: window = 5/1s`}},
		{"240 sub-buckets", limit.Policy{Limits: []limit.Limit{
			limit.Sliding(1, 2*time.Minute, time.Second), limit.Sliding(1, time.Hour, 30*time.Second), limit.PerDay(1),
		}}, nil},
		{"241", limit.Policy{Name: "fine", Limits: []limit.Limit{
			limit.Sliding(1, 2*time.Minute, time.Second), limit.Sliding(1, time.Hour, 30*time.Second), limit.Sliding(1, time.Second, time.Second),
		}}, []string{`policy "fine": sub-buckets = 241`}},
		{"all at once", limit.Policy{Name: "A", Limits: []limit.Limit{
			limit.PerSecond(0).Named("x"), limit.Sliding(-1, time.Second, 0).Named("x"), limit.PerSecond(1),
		}}, []string{
			`policy name = "A"`, `policy "A": limit 1: max = 0`, `policy "A": limit 2: max = -1`,
			`policy "A": limit 2: precision = 0s`, `policy "A": limit 2: name = "x"`, `policy "A": limit 3: window = 1/1s`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, _ := refused(t, test.policy.Validate()); !slices.Equal(got, test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestCheckCost(t *testing.T) {
	p := &limit.Policy{Limits: []limit.Limit{limit.PerSecond(100), limit.Sliding(50, time.Hour, time.Minute), limit.TokenBucket(1000, time.Second, 20)}}
	for _, test := range []struct {
		cost  int64
		bound string // empty: good
		never bool   // no waiting helps
	}{
		{1, "", false},
		{20, "", false},
		{21, "at most 20 under limit 1000/1s+20", true},
		{50, "at most 20 under limit 1000/1s+20", true},
		{51, "at most 50 under limit 50/1h~1m", true},
		{101, "at most 100 under limit 100/1s", true},
		{limit.MaxCount, "at most 100 under limit 100/1s", true},
		{limit.MaxCount + 1, "9007199254740991", false},
		{math.MaxInt64, "9007199254740991", false},
		{0, "from 1", false},
		{-1, "from 1", false},
		{math.MinInt64, "from 1", false},
	} {
		err := p.CheckCost(test.cost)
		problems, bounds := refused(t, err)
		if test.bound == "" {
			if err != nil {
				t.Errorf("%d: %v", test.cost, err)
			}
			continue
		}
		if want := fmt.Sprintf("cost = %d", test.cost); !slices.Equal(problems, []string{want}) {
			t.Errorf("%d: %q, want %q", test.cost, problems, want)
		} else if !strings.Contains(bounds[0], test.bound) {
			t.Errorf("%d: the bound is %q, want %q in it", test.cost, bounds[0], test.bound)
		}
		if errors.Is(err, limit.ErrCostExceedsLimit) != test.never {
			t.Errorf("%d: %v, is ErrCostExceedsLimit: want %t", test.cost, err, test.never)
		}
	}
}

func TestShorthands(t *testing.T) {
	for _, test := range []struct {
		got, want limit.Limit
		quota     int64
	}{
		{limit.PerSecond(1), limit.Fixed(1, time.Second), 1},
		{limit.PerMinute(2), limit.Fixed(2, time.Minute), 2},
		{limit.PerHour(3).Aligned(), limit.Limit{
			Max: 3, Window: time.Hour, Algorithm: limit.FixedWindow, Alignment: limit.ClockAligned,
		}, 3},
		{limit.PerDay(4).Staggered(), limit.Limit{
			Max: 4, Window: 24 * time.Hour, Algorithm: limit.FixedWindow, Alignment: limit.KeyStaggered,
		}, 4},
		{limit.Sliding(5, time.Hour, time.Minute).Named("n"), limit.Limit{
			Name: "n", Max: 5, Window: time.Hour, Precision: time.Minute, Algorithm: limit.SlidingWindow,
		}, 5},
		{limit.TokenBucket(6, time.Second, 7), limit.Limit{
			Max: 6, Burst: 7, Window: time.Second, Algorithm: limit.Bucket,
		}, 7},
	} {
		if test.got != test.want || test.got.Quota() != test.quota {
			t.Errorf("%+v, quota %d; want %+v, %d", test.got, test.got.Quota(), test.want, test.quota)
		}
	}
}

// What a bucket owes may be far above its Burst.
func TestRefillSaturates(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.TokenBucket(1, time.Hour, 10), limit.TokenBucket(1, limit.MaxWindow, 1), limit.TokenBucket(3, 24*time.Hour, 10),
	} {
		if micros, fraction := l.Refill(limit.MaxCount); micros != limit.MaxCount || fraction != 0 {
			t.Errorf("%s: %d.%d, want %d", l, micros, fraction, limit.MaxCount)
		}
	}
	fast := limit.TokenBucket(1<<52, time.Microsecond, 1)
	if micros, fraction := fast.Refill(limit.MaxCount); micros != 1 || fraction != 1<<52-1 {
		t.Errorf("%s: %d.%d", fast, micros, fraction)
	}
}
