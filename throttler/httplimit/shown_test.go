package httplimit_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// What clients see of limits, beyond numbers: units, partition keys, and which limits at all.

func TestHide(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		hide          []string
		limits        []limit.Limit
		policy, state string
		remaining     string // of GitHub's fields
		resource      string
		violated      []string // by the third request
	}{
		{"the binding limit", []string{"internal"},
			[]limit.Limit{limit.PerHour(9).Named("hourly"), limit.Fixed(2, 2*time.Hour).Named("internal"), limit.PerDay(5).Named("daily")},
			`"hourly";q=9;w=3600, "daily";q=5;w=86400`, `"hourly";r=7;t=3600, "daily";r=3;t=86400`, "3", "daily", nil},
		{"another", []string{"internal"},
			[]limit.Limit{limit.PerDay(9).Named("internal"), limit.PerHour(2).Named("hourly")},
			`"hourly";q=2;w=3600`, `"hourly";r=0;t=3600`, "0", "hourly", []string{"hourly"}},
		{"by its text form", []string{"2/1h"}, []limit.Limit{limit.PerHour(2), limit.PerDay(2)},
			`"2/24h";q=2;w=86400`, `"2/24h";r=0;t=86400`, "0", "2/24h", []string{"2/24h"}},
		{"all", []string{"internal"}, []limit.Limit{limit.PerHour(2).Named("internal")}, "", "", "", "", nil},
	} {
		th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(test.limits...)})
		h := wrap(t, th, httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub, Hide: test.hide}, ok)
		get(h)
		header := get(h).Header()
		if got := header.Get("RateLimit-Policy"); got != test.policy {
			t.Errorf("%s: RateLimit-Policy: %s, want %s", test.name, got, test.policy)
		}
		if got := header.Get("RateLimit"); got != test.state {
			t.Errorf("%s: RateLimit: %s, want %s", test.name, got, test.state)
		}
		if header.Get("X-RateLimit-Remaining") != test.remaining || header.Get("X-RateLimit-Resource") != test.resource {
			t.Errorf("%s: %v", test.name, header)
		}
		w := get(h)
		if p := body(t, w); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" ||
			!slices.Equal(p.ViolatedPolicies, test.violated) || p.Type != quotaExceeded {
			t.Errorf("%s: %d, %v, %+v", test.name, w.Code, w.Header(), p)
		}
	}
}

// A counter is no limit that a client could see.
func TestCountersAreNotShown(t *testing.T) {
	t.Parallel()
	counter := limit.Counter(time.Hour, time.Minute)
	cfg := httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}
	alone := get(wrap(t, throttlertesting.New(t, throttler.Config{Policy: policy(counter)}), cfg, ok)).Header()
	for name := range alone {
		if strings.Contains(strings.ToLower(name), "ratelimit") {
			t.Errorf("a policy of a counter: %s: %s", name, alone.Get(name))
		}
	}
	beside := get(wrap(t, throttlertesting.New(t, throttler.Config{Policy: policy(counter, limit.PerHour(9))}), cfg, ok)).Header()
	if got := beside.Get("RateLimit-Policy"); got != `"9/1h";q=9;w=3600` {
		t.Errorf("RateLimit-Policy: %s", got)
	}
	if got := beside.Get("X-RateLimit-Limit"); got != "9" {
		t.Errorf("X-RateLimit-Limit: %s", got)
	}
}

func TestQuotaUnit(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(9), limit.PerDay(99))})
	header := get(wrap(t, th, httplimit.Config{QuotaUnit: "content-bytes"}, ok)).Header()
	const want = `"9/1h";q=9;w=3600;qu="content-bytes", "99/24h";q=99;w=86400;qu="content-bytes"`
	if got := header.Get("RateLimit-Policy"); got != want {
		t.Errorf("RateLimit-Policy: %s, want %s", got, want)
	}
	if got := header.Get("RateLimit"); strings.Contains(got, "qu=") {
		t.Errorf("RateLimit: %s", got)
	}
}

var partition = regexp.MustCompile(`;pk=:([A-Za-z0-9+/]{16}):`)

// pk is the same for the same keys and secret, differs for others, and shows nothing of the key.
func TestPartitionSecret(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(9), limit.PerDay(99))})
	pk := func(secret string, keys ...string) string {
		t.Helper()
		cfg := httplimit.Config{PartitionSecret: []byte(secret)}
		for i, key := range keys {
			f := func(*http.Request) (string, error) { return key, nil }
			if i == 0 {
				cfg.Key = f
			} else {
				cfg.Also = append(cfg.Also, f)
			}
		}
		header := get(wrap(t, th, cfg, ok)).Header()
		all := partition.FindAllStringSubmatch(header.Get("RateLimit-Policy")+header.Get("RateLimit"), -1)
		if len(all) != 4 || all[0][1] != all[1][1] || all[0][1] != all[2][1] || all[0][1] != all[3][1] {
			t.Fatalf("%v, want one pk in each of two policies and two limits", header)
		}
		if raw, err := base64.StdEncoding.DecodeString(all[0][1]); err != nil || strings.Contains(string(raw), keys[0]) {
			t.Errorf("%q, %v", raw, err)
		}
		return all[0][1]
	}
	const one, two = "sixteen bytes or", "another sixteen!"
	if first, second := pk(one, "a"), pk(one, "a"); first != second {
		t.Errorf("the same key has two: %s and %s", first, second)
	}
	seen := make(map[string]bool)
	for _, p := range []string{pk(one, "a"), pk(two, "a"), pk(one, "b"), pk(one, "a", "b"), pk(one, "ab"), pk(one, "b", "a")} {
		if seen[p] {
			t.Errorf("%s stands for two", p)
		}
		seen[p] = true
	}
}

// A deny list and reduced capacity have the draft's problem types; the latter names the limits that have names.
func TestProblemTypes(t *testing.T) {
	t.Parallel()
	named := policy(limit.PerMinute(10).Named("minute"), limit.PerHour(10), limit.PerDay(1000).Named("daily"))
	for name, test := range map[string]struct {
		th       throttler.Config
		hide     []string
		down     bool
		status   int
		kind     string
		violated []string
	}{
		"listed": {throttler.Config{Deny: []string{secret}}, nil, false, 403,
			"https://iana.org/assignments/http-problem-types#abnormal-usage-detected", nil},
		"local":            {throttler.Config{Processes: 10}, nil, true, 429, reducedCapacity, []string{"minute"}},
		"local and hidden": {throttler.Config{Processes: 10}, []string{"minute"}, true, 429, reducedCapacity, nil},
		"closed":           {throttler.Config{Failure: throttler.FailClosed}, nil, true, 503, reducedCapacity, nil},
	} {
		b := newCounts(t)
		b.down.Store(test.down)
		test.th.Backend, test.th.Policy = b, named
		h := wrap(t, throttlertesting.New(t, test.th), httplimit.Config{Hide: test.hide}, ok)
		get(h)
		w := get(h)
		if p := body(t, w); w.Code != test.status || p.Status != test.status || p.Type != test.kind ||
			!slices.Equal(p.ViolatedPolicies, test.violated) {
			t.Errorf("%s: %d, %+v", name, w.Code, p)
		}
	}
}

func TestChallenge(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	for challenge, want := range map[string]string{"": "ApiKey", `Bearer realm="api"`: `Bearer realm="api"`} {
		w := get(wrap(t, th, httplimit.Config{Key: httplimit.Header("Authorization", nil), Challenge: challenge}, ok))
		if got := w.Header().Get("WWW-Authenticate"); w.Code != http.StatusUnauthorized || got != want {
			t.Errorf("%d, %q, want 401, %q", w.Code, got, want)
		}
	}
	// Outside of a Middleware, too.
	w := httptest.NewRecorder()
	httplimit.WriteError(w, httptest.NewRequest(http.MethodGet, "/", nil), httplimit.ErrNoKey)
	if got := w.Header().Get("WWW-Authenticate"); w.Code != http.StatusUnauthorized || got != "ApiKey" {
		t.Errorf("%d, %q", w.Code, got)
	}
}

// PolicyFor may make more limits than a Middleware keeps the texts of.
func TestManyLimits(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{
		Backend: newCounts(t), Policy: policy(limit.PerHour(1)),
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			quota, err := strconv.ParseInt(key, 10, 64)
			if err != nil {
				t.Error(err)
			}
			p := policy(limit.PerHour(quota))
			return &p
		},
	})
	h := wrap(t, th, httplimit.Config{Key: func(r *http.Request) (string, error) { return r.URL.Path[1:], nil }}, ok)
	for left := int64(1); left <= 2; left++ {
		for quota := range int64(600) {
			quota += 1000
			w, n := httptest.NewRecorder(), strconv.FormatInt(quota, 10)
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+n, nil))
			policy, state := `"`+n+`/1h";q=`+n+`;w=3600`, `"`+n+`/1h";r=`+strconv.FormatInt(quota-left, 10)+`;t=3600`
			if got := w.Header(); got.Get("RateLimit-Policy") != policy || got.Get("RateLimit") != state {
				t.Fatalf("%v, want %s and %s", got, policy, state)
			}
		}
	}
}
