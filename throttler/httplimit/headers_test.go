package httplimit_test

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// staggered is what a hash of the key decides.
var staggered = regexp.MustCompile(`("6/1h@staggered";r=5;t=)[0-9]{1,4}`)

func TestDraftHeaders(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		limits        []limit.Limit
		costs         []int64         // before
		after         []time.Duration // each of them
		cost          int64
		status        int
		policy, state string
		retry         string
	}{
		{
			name:   "as the draft has it",
			limits: []limit.Limit{limit.PerMinute(100).Named("burst"), limit.PerDay(1000).Named("daily")},
			costs:  []int64{49}, after: []time.Duration{30 * time.Second}, cost: 1, status: 200,
			policy: `"burst";q=100;w=60, "daily";q=1000;w=86400`, state: `"burst";r=50;t=30, "daily";r=950;t=86370`,
		},
		{
			name: "text forms",
			limits: []limit.Limit{limit.PerMinute(5).Aligned(), limit.PerHour(6).Staggered(), limit.Sliding(7, time.Hour, time.Minute),
				limit.TokenBucket(10, time.Second, 20)},
			cost: 1, status: 200,
			policy: `"5/1m@aligned";q=5;w=60, "6/1h@staggered";q=6;w=3600, "7/1h~1m";q=7;w=3600, "10/1s+20";q=20;w=2`,
			state:  `"5/1m@aligned";r=4;t=60, "6/1h@staggered";r=5;t=STAGGER, "7/1h~1m";r=6;t=3600, "10/1s+20";r=19;t=1`,
		},
		{
			name: "more limits than a decision holds inline",
			limits: []limit.Limit{limit.PerSecond(1), limit.PerMinute(2), limit.PerHour(3), limit.PerDay(4),
				limit.Fixed(5, 48*time.Hour)},
			cost: 1, status: 200,
			policy: `"1/1s";q=1;w=1, "2/1m";q=2;w=60, "3/1h";q=3;w=3600, "4/24h";q=4;w=86400, "5/48h";q=5;w=172800`,
			state:  `"1/1s";r=0;t=1, "2/1m";r=1;t=60, "3/1h";r=2;t=3600, "4/24h";r=3;t=86400, "5/48h";r=4;t=172800`,
		},
		{
			name: "parts of seconds are rounded up", limits: []limit.Limit{limit.Fixed(5, 2500*time.Millisecond)},
			costs: []int64{1}, after: []time.Duration{1499 * time.Millisecond}, cost: 1, status: 200,
			policy: `"5/2500ms";q=5;w=3`, state: `"5/2500ms";r=3;t=2`,
		},
		{
			name: "short windows", limits: []limit.Limit{limit.Fixed(5, 100*time.Millisecond)}, cost: 1, status: 200,
			policy: `"5/100ms";q=5;w=1`, state: `"5/100ms";r=4;t=1`,
		},
		{
			name: "more than an Integer holds", limits: []limit.Limit{limit.PerMinute(limit.MaxCount)}, cost: 1, status: 200,
			policy: `"9007199254740991/1m";q=999999999999999;w=60`, state: `"9007199254740991/1m";r=999999999999999;t=60`,
		},
		{
			name: "denied", limits: []limit.Limit{limit.PerMinute(5).Named("a"), limit.PerHour(50).Named("b")},
			costs: []int64{4}, after: []time.Duration{10500 * time.Millisecond}, cost: 2, status: 429,
			policy: `"a";q=5;w=60, "b";q=50;w=3600`, state: `"a";r=1;t=50, "b";r=46;t=3590`, retry: "50",
		},
		{
			name: "denied for less than a second", limits: []limit.Limit{limit.TokenBucket(100, time.Second, 1)},
			costs: []int64{1}, after: []time.Duration{0}, cost: 1, status: 429,
			policy: `"100/1s+1";q=1;w=1`, state: `"100/1s+1";r=0;t=1`, retry: "1",
		},
		{
			name: "a bucket's next token", limits: []limit.Limit{limit.TokenBucket(1, time.Minute, 5)},
			costs: []int64{2}, after: []time.Duration{15 * time.Second}, cost: 1, status: 200,
			policy: `"1/1m+5";q=5;w=300`, state: `"1/1m+5";r=2;t=45`,
		},
		{
			name: "a bucket's last but one", limits: []limit.Limit{limit.TokenBucket(1, time.Minute, 5)},
			costs: []int64{1}, after: []time.Duration{15 * time.Second}, cost: 1, status: 200,
			policy: `"1/1m+5";q=5;w=300`, state: `"1/1m+5";r=3;t=45`,
		},
		{
			name: "a bucket's last token", limits: []limit.Limit{limit.TokenBucket(1, time.Minute, 5)},
			costs: []int64{1}, after: []time.Duration{61 * time.Second}, cost: 1, status: 200,
			policy: `"1/1m+5";q=5;w=300`, state: `"1/1m+5";r=4;t=60`,
		},
		{
			name: "a bucket with fractions", limits: []limit.Limit{limit.TokenBucket(3, 10*time.Second, 7)},
			costs: []int64{7}, after: []time.Duration{11 * time.Second}, cost: 1, status: 200, // 3.3 tokens are back
			policy: `"3/10s+7";q=7;w=24`, state: `"3/10s+7";r=2;t=3`,
		},
		{
			name: "a large bucket", limits: []limit.Limit{limit.TokenBucket(1<<52, time.Second, limit.MaxCount)},
			cost: 1 << 52, status: 200,
			policy: `"4503599627370496/1s+9007199254740991";q=999999999999999;w=2`,
			state:  `"4503599627370496/1s+9007199254740991";r=999999999999999;t=1`,
		},
		{
			name: "a bucket that refills in a second and a third of a microsecond", cost: 1, status: 200,
			limits: []limit.Limit{limit.TokenBucket(3_000_000, time.Second, 3_000_001)},
			policy: `"3000000/1s+3000001";q=3000001;w=2`, state: `"3000000/1s+3000001";r=3000000;t=1`,
		},
		{
			name:   "a bucket that another limit keeps full",
			limits: []limit.Limit{limit.TokenBucket(1, time.Minute, 5), limit.Fixed(1, time.Hour).Named("one")},
			costs:  []int64{1}, after: []time.Duration{30 * time.Minute}, cost: 1, status: 429,
			policy: `"1/1m+5";q=5;w=300, "one";q=1;w=3600`, state: `"1/1m+5";r=5;t=60, "one";r=0;t=1800`, retry: "1800",
		},
		{
			name:   "a sliding limit that denies tells when the first sub-bucket leaves",
			limits: []limit.Limit{limit.Sliding(4, time.Minute, 10*time.Second)},
			costs:  []int64{2, 2}, after: []time.Duration{20 * time.Second, 5 * time.Second}, cost: 1, status: 429,
			policy: `"4/1m~10s";q=4;w=60`, state: `"4/1m~10s";r=0;t=35`, retry: "35",
		},
		{
			name:   "a sliding limit that admits tells when all is back",
			limits: []limit.Limit{limit.Sliding(4, time.Minute, 10*time.Second)},
			costs:  []int64{2}, after: []time.Duration{20 * time.Second}, cost: 1, status: 200,
			policy: `"4/1m~10s";q=4;w=60`, state: `"4/1m~10s";r=1;t=60`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newCounts(t)
			th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(test.limits...)})
			for i, cost := range test.costs {
				if d, err := th.AllowN(t.Context(), secret, cost); err != nil || !d.Allowed {
					t.Fatalf("%+v, %v", d, err)
				}
				b.advance(test.after[i])
			}
			w := get(wrap(t, th, httplimit.Config{Cost: func(*http.Request) int64 { return test.cost }}, ok))
			if w.Code != test.status {
				t.Errorf("%d, want %d", w.Code, test.status)
			}
			if got := w.Header().Get("RateLimit-Policy"); got != test.policy {
				t.Errorf("RateLimit-Policy: %s\nwant              %s", got, test.policy)
			}
			if got := staggered.ReplaceAllString(w.Header().Get("RateLimit"), "${1}STAGGER"); got != test.state {
				t.Errorf("RateLimit: %s\nwant       %s", got, test.state)
			}
			if got := w.Header().Get("Retry-After"); got != test.retry {
				t.Errorf("Retry-After = %q, want %q", got, test.retry)
			}
			if got := w.Header().Get("X-RateLimit-Limit"); got != "" {
				t.Errorf("X-RateLimit-Limit = %q unasked", got)
			}
		})
	}
}

func TestGitHubHeaders(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, resource string
		limits         []limit.Limit
		want           [][3]string // limit, remaining, used of each request
		name2          string      // of the resource
	}{
		{"fixed", "", []limit.Limit{limit.PerHour(2), limit.PerDay(100)},
			[][3]string{{"2", "1", "1"}, {"2", "0", "2"}, {"2", "0", "2"}}, "2/1h"},
		{"bucket", "", []limit.Limit{limit.TokenBucket(1, time.Hour, 2).Named("core")},
			[][3]string{{"2", "1", "1"}, {"2", "0", "2"}, {"2", "0", "2"}}, "core"},
		{"a resource", "search", []limit.Limit{limit.PerHour(1)}, [][3]string{{"1", "0", "1"}, {"1", "0", "1"}}, "search"},
	} {
		b := newCounts(t)
		b.advance(300 * time.Millisecond) // the reset is within a second
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(test.limits...)})
		h := wrap(t, th, httplimit.Config{Headers: httplimit.GitHub, Resource: test.resource}, ok)
		for i, want := range test.want {
			header := get(h).Header()
			got := [3]string{
				header.Get("X-RateLimit-Limit"), header.Get("X-RateLimit-Remaining"), header.Get("X-RateLimit-Used"),
			}
			if got != want || header.Get("X-RateLimit-Resource") != test.name2 || header.Get("RateLimit") != "" {
				t.Errorf("%s, request %d: %v, want %v", test.name, i+1, header, want)
			}
			d, err := th.Peek(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			reset, err := strconv.ParseInt(header.Get("X-RateLimit-Reset"), 10, 64)
			if early := d.ResetAt.Sub(time.Unix(reset, 0)); err != nil || early > 0 || early <= -time.Second {
				t.Errorf("%s: reset %d, want %v rounded up to seconds", test.name, reset, d.ResetAt)
			}
		}
	}
}

func TestHeaderFamilies(t *testing.T) {
	t.Parallel()
	draft := []string{"Ratelimit", "Ratelimit-Policy"}
	github := []string{
		"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Resource", "X-Ratelimit-Used",
	}
	for _, test := range []struct {
		headers httplimit.Headers
		want    []string
	}{
		{0, draft}, {httplimit.Draft08, draft}, {httplimit.GitHub, github}, {httplimit.NoHeaders, nil},
		{httplimit.Draft08 | httplimit.GitHub, slices.Concat(draft, github)},
	} {
		th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
		h := wrap(t, th, httplimit.Config{Headers: test.headers}, ok)
		var got []string
		for name := range get(h).Header() {
			got = append(got, name)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%d: %q, want %q", test.headers, got, test.want)
		}
		if got := get(h).Header().Get("Retry-After"); got == "" {
			t.Errorf("%d: a denial without Retry-After", test.headers)
		}
	}
}

// A backend that says little, or nonsense, makes no malformed headers.
func TestHeadersOfAnOddBackend(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*backend.Result)
		state  string
		retry  string
	}{
		{"a denial without a reason", func(r *backend.Result) { *r = backend.Result{} }, "", "1"},
		{"the reset is over", func(r *backend.Result) { r.Now += 2 * time.Hour.Microseconds() }, `"2/1h";r=1;t=0`, ""},
	} {
		b := odd{newCounts(t), test.change}
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(2))})
		header := get(wrap(t, th, httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}, ok)).Header()
		if header.Get("RateLimit") != test.state || header.Get("Retry-After") != test.retry ||
			(header.Get("X-RateLimit-Limit") == "") != (test.state == "") {
			t.Errorf("%s: %v", test.name, header)
		}
	}
}

type odd struct {
	*counts
	change func(*backend.Result)
}

func (o odd) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := o.counts.Take(ctx, req)
	o.change(&r)
	return r, err
}

// RateLimit is a list: nested Middlewares tell both of their limits. The handler inside may change what was set.
func TestNested(t *testing.T) {
	t.Parallel()
	outer := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerHour(9).Named("all"))})
	inner := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerHour(2).Named("search"))})
	h := wrap(t, outer, httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}, wrap(t, inner,
		httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub},
		func(w http.ResponseWriter, r *http.Request) {
			if d, _ := httplimit.FromContext(r.Context()); d.Limit.Name != "search" {
				t.Errorf("FromContext = %+v, want that of the innermost", d)
			}
		}).ServeHTTP)
	header := get(h).Header()
	if got, want := header.Values("RateLimit"), []string{`"all";r=8;t=3600`, `"search";r=1;t=3600`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit = %q, want %q", got, want)
	}
	if got, want := header.Values("RateLimit-Policy"), []string{`"all";q=9;w=3600`, `"search";q=2;w=3600`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit-Policy = %q, want %q", got, want)
	}
	if got := header.Values("X-RateLimit-Limit"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("X-RateLimit-Limit = %q, want one", got)
	}
}
