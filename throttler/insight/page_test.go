package insight_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

func get(h http.Handler, target, accept string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, target, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	h.ServeHTTP(w, r)
	return w
}

// Programs get JSON as ever, browsers the page.
func TestPageIsNegotiated(t *testing.T) {
	t.Parallel()
	h := insight.Handler(newRecorder(t, insight.Config{}), insight.HandlerConfig{})
	for accept, page := range map[string]bool{
		"": false, "*/*": false, "text/*": false, "application/json": false, "application/json, text/plain, */*": false,
		"text/html": true, "Text/HTML; charset=utf-8": true,
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8": true, // browsers
		"text/html;q=0": false, "text/html;q=none": false, "text/html;q=0.8,application/json": false,
		"application/json;q=0.8, text/html; level=1; q=0.9": true, "application/json, text/html": false,
	} {
		w := get(h, "/debug/sluice", accept)
		kind := w.Header().Get("Content-Type")
		if w.Code != http.StatusOK || (kind == "text/html; charset=utf-8") != page || (kind == "application/json") == page ||
			w.Header().Get("Vary") != "Accept" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%q: %d, %v", accept, w.Code, w.Header())
		}
		if policy := w.Header().Get("Content-Security-Policy"); page && !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") {
			t.Errorf("%q: policy %q", accept, policy)
		}
	}
}

var linked = regexp.MustCompile(`(?:href|src)="([^"]*)"`)

// The page is complete without any other path, has nothing inline, and hands the query on.
func TestPageAssets(t *testing.T) {
	t.Parallel()
	h := insight.Handler(newRecorder(t, insight.Config{}), insight.HandlerConfig{})
	page := get(h, `/debug/sluice?token=a%26b%22%3E%3Cscript%3E&top=5`, "text/html").Body.String()
	if strings.Contains(page, "style=") || strings.Contains(page, "<style") || strings.Contains(page, "a&b") ||
		regexp.MustCompile(`<script(>| [^>]*>[^<])|\son[a-z]+=`).MatchString(page) {
		t.Errorf("inline script or style, or a query that isn't escaped: %s", page)
	}
	links := linked.FindAllStringSubmatch(page, -1)
	for _, link := range links {
		u, err := url.Parse(strings.ReplaceAll(link[1], "&amp;", "&"))
		if err != nil || u.Path != "" || u.Host != "" || u.Query().Get("token") != `a&b"><script>` || u.Query().Get("top") != "5" {
			t.Errorf("link %q: %v, %v", link[1], u, err)
			continue
		}
		w := get(h, "/debug/sluice"+u.String(), "*/*")
		kind := w.Header().Get("Content-Type")
		if w.Code != http.StatusOK || w.Body.Len() == 0 || w.Header().Get("X-Content-Type-Options") != "nosniff" ||
			!strings.HasPrefix(kind, "text/css") && !strings.HasPrefix(kind, "text/javascript") && kind != "image/svg+xml" {
			t.Errorf("%s: %d, %v", u, w.Code, w.Header())
		}
		if text := w.Body.String(); kind != "image/svg+xml" && regexp.MustCompile(`https?://|@import|innerHTML|eval\(`).MatchString(
			strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "")) {
			t.Errorf("%s reaches elsewhere", u)
		}
	}
	if len(links) != 4 {
		t.Errorf("%d links: %q", len(links), links)
	}
	for _, name := range []string{"no.js", "../handler.go", "page.html", "page/page.js"} {
		if w := get(h, "/?asset="+url.QueryEscape(name), ""); w.Code != http.StatusNotFound {
			t.Errorf("asset %s: %d", name, w.Code)
		}
	}
}

// A Report has the parts that there are functions for.
func TestReport(t *testing.T) {
	t.Parallel()
	read := func(cfg insight.HandlerConfig) (text string, r insight.Report) {
		text = get(insight.Handler(newRecorder(t, insight.Config{}), cfg), "/", "").Body.String()
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		return text, r
	}
	text, without := read(insight.HandlerConfig{})
	for _, part := range []string{"nodes", "router", "lease", "dual", "flag"} {
		if strings.Contains(text, `"`+part+`"`) {
			t.Errorf("%s: %s", part, text)
		}
	}
	if without.Started.IsZero() || without.Time.Before(without.Started) || time.Since(without.Time) > time.Minute {
		t.Errorf("%+v", without)
	}
	node := insight.Node{Group: "eu-1", Node: "10.0.0.1:6379", Role: "primary", Breaker: "open", RTT: time.Millisecond}
	_, with := read(insight.HandlerConfig{
		Nodes:  func() []insight.Node { return []insight.Node{node} },
		Router: func() insight.RouterStats { return insight.RouterStats{Handovers: 1} },
		Lease:  func() lease.Stats { return lease.Stats{Leased: 2} },
		Dual:   func() dual.Stats { return dual.Stats{New: 3, Shadow: dual.ShadowStats{Agreed: 4}} },
		Flag:   func() insight.Flag { return insight.Flag{Name: "limits-in-redis", Percent: 12.5} },
	})
	if len(with.Nodes) != 1 || with.Nodes[0] != node || with.Router.Handovers != 1 || with.Lease.Leased != 2 || with.Dual.New != 3 ||
		with.Dual.Shadow.Agreed != 4 || with.Flag.Percent != 12.5 {
		t.Errorf("%+v", with)
	}
}

// Keys near a limit are reported until its window ends, hashed unless asked for in clear.
func TestNearLimitsAreReported(t *testing.T) {
	t.Parallel()
	near := newNearLimit(t, 0.5, nil)
	recorder := newRecorder(t, insight.Config{NearLimit: near})
	th := throttlertesting.New(t, throttler.Config{
		Observer: throttler.Observers(recorder, near),
		Policy:   limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerHour(4), limit.Fixed(4, time.Nanosecond*1e6)}},
	})
	for _, key := range []string{"alice", "bob", "carol"} {
		for range 2 {
			throttlertesting.Allow(t, th, key)
		}
	}
	hour := func(all []insight.NearKey) (kept []insight.NearKey) {
		for _, k := range all {
			if k.Limit.Window == time.Hour {
				kept = append(kept, k)
			}
		}
		return kept
	}
	var got []insight.NearKey
	for deadline := time.Now().Add(10 * time.Second); len(hour(got)) < 3 || len(got) > 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got %+v", got)
		}
		got = recorder.Stats().NearLimits
	}
	for i, key := range []string{"carol", "bob", "alice"} {
		if k := got[i]; k.Key != recorder.KeyHash(key) || k.Policy != "api" || k.Remaining != 2 || time.Until(k.ResetAt) < 59*time.Minute {
			t.Errorf("%d: %+v", i, k)
		}
	}
	for _, clear := range []bool{false, true} {
		h := insight.Handler(recorder, insight.HandlerConfig{ClearKeys: clear})
		if text := get(h, "/?top=2", "").Body.String(); strings.Contains(text, "carol") != clear || strings.Contains(text, "alice") {
			t.Errorf("in clear %v: %s", clear, text)
		}
	}
}

// What is kept of notices is bounded in number and in bytes, the latest stay.
func TestNearLimitsAreBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ size, keys, kept int }{{10, 1200, 1000}, {2000, 200, 1 << 18 / 2000}} {
		noticed := make(chan string)
		near := newNearLimit(t, 1, func(n insight.NearLimitEvent) { noticed <- n.Key })
		recorder := newRecorder(t, insight.Config{NearLimit: near})
		th := throttlertesting.New(t, throttler.Config{Observer: near, Policy: throttlertesting.One(limit.PerDay(4))})
		var last string
		for i := range test.keys {
			last = fmt.Sprintf("%0*d", test.size, i)
			throttlertesting.Allow(t, th, last)
			if got := <-noticed; got != last {
				t.Fatalf("notice of %s, want %s", got, last)
			}
		}
		var report insight.Report
		h := insight.Handler(recorder, insight.HandlerConfig{ClearKeys: true})
		if err := json.Unmarshal(get(h, "/?top=1000", "").Body.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		if got := report.NearLimits; len(got) != test.kept || got[0].Key != last {
			t.Errorf("keys of %d bytes: %d kept, want %d; the latest is among them: %v", test.size, len(got), test.kept, len(got) > 0 && got[0].Key == last)
		}
	}
}
