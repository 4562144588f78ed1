package insight_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

func ExampleHandler() {
	recorder, err := insight.New(insight.Config{WatchedKeys: 1000, HashKey: []byte("a secret of all processes")})
	if err != nil {
		log.Fatal(err)
	}
	t, err := throttler.New(throttler.Config{
		Policy:   limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}},
		Observer: recorder,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	for range 3 {
		if _, err := t.Allow(context.Background(), "user:42"); err != nil {
			log.Fatal(err)
		}
	}

	operators := http.NewServeMux() // on an address that clients don't reach
	operators.Handle("/debug/sluice", insight.Handler(recorder, insight.HandlerConfig{}))

	w := httptest.NewRecorder()
	operators.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/sluice?top=5", nil))
	var stats insight.Stats
	if err := json.Unmarshal(w.Body.Bytes(), &stats); err != nil {
		log.Fatal(err)
	}
	fmt.Println(stats.Policies[0].Policy, stats.Policies[0].Allowed, stats.Policies[0].Denied, stats.TopDenied)
	// Output:
	// api 2 1 [{1a908f76ab261a543d9d103b83ff3265 1 0}]
}

// The functions of a HandlerConfig add to a Report what else the application has.
func ExampleHandlerConfig() {
	newMemory := func() *memory.Memory {
		m, err := memory.New(memory.Config{})
		if err != nil {
			log.Fatal(err)
		}
		return m
	}
	flag, err := featureflag.New(featureflag.Config{Name: "new-counts", Source: featureflag.Static(100)})
	if err != nil {
		log.Fatal(err)
	}
	defer flag.Close()
	counts, err := dual.New(dual.Config{Old: newMemory(), New: newMemory(), Decide: flag.Decide, CarryOver: true})
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	recorder, err := insight.New(insight.Config{})
	if err != nil {
		log.Fatal(err)
	}
	t, err := throttler.New(throttler.Config{
		Backend: counts, Observer: recorder, Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	if _, err := t.Allow(context.Background(), "user:42"); err != nil {
		log.Fatal(err)
	}

	handler := insight.Handler(recorder, insight.HandlerConfig{
		Dual: counts.Stats,
		Flag: func() insight.Flag {
			s := flag.State()
			return insight.Flag{Name: s.Name, Percent: s.Percent, Version: s.Version, Reason: string(s.Reason), Stale: s.Stale}
		},
	})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/sluice", nil))
	var report insight.Report
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Flag.Name, report.Flag.Percent, "%:", report.Dual.Old, "old,", report.Dual.New, "new")
	// Output:
	// new-counts 100 %: 0 old, 1 new
}

func TestHandler(t *testing.T) {
	t.Parallel()
	const secret = "alice@example.com"
	recorder := newRecorder(t, insight.Config{WatchedKeys: 100})
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerMinute(1)), Observer: recorder})
	for i := range 60 {
		if _, err := th.Allow(t.Context(), fmt.Sprint(secret, i%30)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		method, query string
		clear         bool
		status, top   int
	}{
		{http.MethodGet, "", false, 200, 20},
		{http.MethodGet, "?top=30", false, 200, 30},
		{http.MethodGet, "?top=1000", true, 200, 30},
		{http.MethodGet, "?top=0", true, 200, 0},
		{http.MethodGet, "?top=-1", false, 400, 0},
		{http.MethodGet, "?top=1001", false, 400, 0},
		{http.MethodGet, "?top=" + secret, false, 400, 0},
		{http.MethodPost, "", false, 405, 0},
	} {
		w := httptest.NewRecorder()
		insight.Handler(recorder, insight.HandlerConfig{ClearKeys: test.clear}).
			ServeHTTP(w, httptest.NewRequest(test.method, "/"+test.query, nil))
		if w.Code != test.status || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%+v: %d, %v", test, w.Code, w.Header())
		}
		if shown := strings.Contains(w.Body.String(), secret); shown != (test.clear && test.top > 0) {
			t.Errorf("%+v: keys in clear %v", test, shown)
		}
		if test.status != 200 {
			continue
		}
		var stats insight.Stats
		if err := json.Unmarshal(w.Body.Bytes(), &stats); err != nil {
			t.Fatal(err)
		}
		if len(stats.TopDenied) != test.top || stats.Policies[0].Denied != 30 {
			t.Errorf("%+v: %+v", test, stats)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a handler of no Recorder")
		}
	}()
	insight.Handler(nil, insight.HandlerConfig{})
}
