package limit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]limit.Limit{
		"100/1m":                limit.PerMinute(100),
		"100/60s":               limit.PerMinute(100),
		"100/1m@aligned":        limit.PerMinute(100).Aligned(),
		"100/1m@staggered":      limit.PerMinute(100).Staggered(),
		"240/1h~1m":             limit.Sliding(240, time.Hour, time.Minute),
		"count/1h~1m":           limit.Counter(time.Hour, time.Minute),
		"n=count/1h~1m":         limit.Counter(time.Hour, time.Minute).Named("n"),
		"70368744177664/1h~1m":  limit.Counter(time.Hour, time.Minute),
		"10/1s+20":              limit.TokenBucket(10, time.Second, 20),
		"daily=1000/24h":        limit.PerDay(1000).Named("daily"),
		"d-1_=5/1h30m":          limit.Fixed(5, 90*time.Minute).Named("d-1_"),
		"7/1500us+1":            limit.TokenBucket(7, 1500*time.Microsecond, 1),
		"0007/1.5s":             limit.Fixed(7, 1500*time.Millisecond),
		"9007199254740991/1ms":  limit.Fixed(limit.MaxCount, time.Millisecond),
		"b=1/87840h+1":          limit.TokenBucket(1, limit.MaxWindow, 1).Named("b"),
		"s=1/2m~1s":             limit.Sliding(1, 2*time.Minute, time.Second).Named("s"),
		"x=1/1ms~1ms":           limit.Sliding(1, time.Millisecond, time.Millisecond).Named("x"),
		"4503599627370496/1h+1": limit.TokenBucket(1<<52, time.Hour, 1),
	} {
		got, err := limit.Parse(text)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, want)
			continue
		}
		if again, err := limit.Parse(got.String()); err != nil || again != got {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", got, again, err, got)
		}
	}
	for _, text := range []string{
		"", "/", "100", "100/", "/1m", "100/1", "100/m", "x/1m", "-1/1m", "+1/1m", "1_000/1m", "1e3/1m", " 1/1m", "1/1m ",
		"0x10/1m", "1.5/1m", "9223372036854775808/1m", "99999999999999999999/1m", "1/1m/1m", "100/-1m", "100/0s",
		"count/1h", "count/1h+5", "count/1h@aligned", "count/~1m", "Count/1h~1m", "count",
		"=1/1m", "A=1/1m", "a=b=1/1m", "a/b=1/1m", strings.Repeat("n", 33) + "=1/1m",
		"1/1m@", "1/1m@first", "1/1m@Aligned", "1/1m@aligned@aligned", "1/1m~", "1/1m~1", "1/1m~1s~1s", "1/1m~7s", "1/1m~-1s",
		"1/1m+", "1/1m+-1", "1/1m+0", "1/1m+1+1", "1/1m+1@aligned", "1/1m~1s@aligned", "1/1m~1s+1", "1/1us", "1/1ns+1",
		"0/1m", "9007199254740992/1m", "1/87841h", "70368744177665/1h~1m", "\x00", "1/1m\x00", "١/1m",
	} {
		l, err := limit.Parse(text)
		var e *limit.Error
		if err == nil || l != (limit.Limit{}) || !errors.As(err, &e) {
			t.Errorf("Parse(%q) = %+v, %v, want a *limit.Error", text, l, err)
		}
	}
	if _, err := limit.Parse("0/1m"); !strings.Contains(err.Error(), `"0/1m"`) || !strings.Contains(err.Error(), "max = 0") {
		t.Errorf("%q names neither the text nor the problem", err)
	}
}

func TestStringIsShort(t *testing.T) {
	for want, l := range map[string]limit.Limit{
		"1/24h":                   limit.PerDay(1),
		"1/1h":                    limit.PerHour(1),
		"1/90m":                   limit.Fixed(1, 90*time.Minute),
		"1/1s":                    limit.PerSecond(1),
		"1/1500ms":                limit.Fixed(1, 1500*time.Millisecond),
		"n=1/1m@aligned":          limit.PerMinute(1).Aligned().Named("n"),
		"n=1/1m@staggered":        limit.PerMinute(1).Staggered().Named("n"),
		"240/1h~1m":               limit.Sliding(240, time.Hour, time.Minute),
		"10/1500us+20":            limit.TokenBucket(10, 1500*time.Microsecond, 20),
		"0/0s":                    {},
		"-1/-1s~1ns":              limit.Sliding(-1, -time.Second, 1),
		"1/9223372036854775807ns": limit.Fixed(1, math.MaxInt64),
	} {
		if got := l.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for want, v := range map[string]fmt.Stringer{
		"fixed": limit.FixedWindow, "sliding": limit.SlidingWindow, "bucket": limit.Bucket, "algorithm(0)": limit.Algorithm(0),
		"first": limit.FirstRequest, "aligned": limit.ClockAligned, "staggered": limit.KeyStaggered, "alignment(4)": limit.Alignment(4),
	} {
		if got := v.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestMain makes the random limits the same in every run; -rapid.seed and -rapid.checks ask for others.
func TestMain(m *testing.M) {
	if err := testtier.SetFlags("rapid.seed", "20260101", "rapid.checks", "200", "rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// drawAnyLimit draws a limit from the whole range of what is valid.
func drawAnyLimit(t *rapid.T) limit.Limit {
	l := rapid.OneOf(
		rapid.Custom(drawSubBuckets),
		rapid.Custom(func(t *rapid.T) limit.Limit {
			l := limit.Fixed(rapid.Int64Range(1, 1000).Draw(t, "max"), drawUnit(t))
			return rapid.SampledFrom([]limit.Limit{l, l.Aligned(), l.Staggered()}).Draw(t, "alignment")
		}),
		rapid.Custom(func(t *rapid.T) limit.Limit {
			return limit.Fixed(
				rapid.Int64Range(1, limit.MaxCount).Draw(t, "max"),
				time.Duration(rapid.Int64Range(1, int64(limit.MaxWindow/time.Millisecond)).Draw(t, "window"))*time.Millisecond)
		}),
		rapid.Custom(func(t *rapid.T) limit.Limit {
			return limit.TokenBucket(
				rapid.Int64Range(1, 1<<52).Draw(t, "rate"),
				time.Duration(rapid.Int64Range(1, int64(limit.MaxWindow/time.Microsecond)).Draw(t, "per"))*time.Microsecond,
				rapid.Int64Range(1, 20_000).Draw(t, "burst"))
		}),
	).Draw(t, "limit")
	return l.Named(rapid.StringMatching(`|[a-z0-9_-]{1,32}`).Draw(t, "name"))
}

func drawSubBuckets(t *rapid.T) limit.Limit {
	precision := drawUnit(t)
	n := rapid.Int64Range(1, limit.MaxSubBuckets).Draw(t, "sub-buckets")
	return limit.Sliding(rapid.Int64Range(1, 1<<46).Draw(t, "max"), time.Duration(n)*precision, precision)
}

func drawUnit(t *rapid.T) time.Duration {
	return time.Duration(rapid.SampledFrom([]int{1, 7, 100, 1000, 90_000, 3_600_000}).Draw(t, "unit")) * time.Millisecond
}

func TestParseAndStringAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawAnyLimit(t)
		if err := l.Validate(); err != nil {
			return
		}
		if got, err := limit.Parse(l.String()); err != nil || got != l {
			t.Fatalf("Parse(%q) = %+v, %v, want %+v", l, got, err, l)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"100/1m", "100/1m@aligned", "100/1m@staggered", "240/1h~1m", "10/1s+20", "daily=1000/24h", "1/1h30m", "1/1.5s",
		"9007199254740991/87840h", "=1/1m", "1/1m~+1s", "1/+1m", "0001/1ms+0001", "1/1µs+1", "1/.5h", "1/1m@", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := limit.Parse(s)
		if err != nil {
			if l != (limit.Limit{}) {
				t.Errorf("Parse(%q) = %+v with %v", s, l, err)
			}
			return
		}
		if err := l.Validate(); err != nil {
			t.Errorf("Parse(%q) = %+v, not valid: %v", s, l, err)
		}
		if again, err := limit.Parse(l.String()); err != nil || again != l {
			t.Errorf("Parse(%q) = %+v, but Parse(%q) = %+v, %v", s, l, l, again, err)
		}
	})
}

func TestLimitsInJSON(t *testing.T) {
	p := limit.Policy{Name: "api", Limits: []limit.Limit{
		limit.PerSecond(10).Named("second"), limit.Sliding(240, time.Hour, time.Minute), limit.TokenBucket(1, time.Second, 5),
	}}
	const want = `{"Name":"api","Limits":["second=10/1s","240/1h~1m","1/1s+5"]}`
	text, err := json.Marshal(p)
	if err != nil || string(text) != want {
		t.Fatalf("got %s, %v, want %s", text, err, want)
	}
	var again limit.Policy
	if err := json.Unmarshal(text, &again); err != nil || again.Name != p.Name || !slices.Equal(again.Limits, p.Limits) {
		t.Fatalf("got %+v, %v, want %+v", again, err, p)
	}

	if text, err := json.Marshal(limit.Limit{}); err == nil {
		t.Errorf("an invalid limit became %s", text)
	}
	kept := limit.PerDay(3)
	if err := kept.UnmarshalText([]byte("0/1m")); err == nil || kept != limit.PerDay(3) {
		t.Errorf("a bad text made of the limit %s, %v", kept, err)
	}
	if err := kept.UnmarshalText([]byte("7/1m")); err != nil || kept != limit.PerMinute(7) {
		t.Errorf("got %s, %v", kept, err)
	}
}
