package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-go/sluice/throttler/httplimit"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

const acme = "sk_4e1ab07d9f2c4c55a3e8d1706b5f2c90" // in policies.yaml by its hash

// In a bubble no second passes between the requests.
func TestTiers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTiers)
}

func testTiers(t *testing.T) {
	policies, err := registry.Open("policies.yaml", registry.Config{Refresh: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer policies.Close()
	api, operators, err := newHandlers(policies)
	if err != nil {
		t.Fatal(err)
	}
	call := func(key string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if key != "" {
			r.Header.Set("X-Api-Key", key)
		}
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		return w
	}
	for key, want := range map[string]int{acme: 50, "sk_d1706b5f2c904e1ab07d9f2c4c55a3e8": 5} {
		admitted := 0
		for range 60 {
			if call(key).Code == http.StatusOK {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: %d admitted, want %d", key, admitted, want)
		}
	}
	if w := call(""); w.Code == http.StatusOK {
		t.Errorf("without a key: %d", w.Code)
	}
	w := httptest.NewRecorder()
	operators.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/sluice", nil))
	var stats insight.Stats
	if err := json.Unmarshal(w.Body.Bytes(), &stats); err != nil || len(stats.TopDenied) == 0 {
		t.Errorf("%v: %s", err, w.Body)
	}
	if strings.Contains(w.Body.String(), "sk_") || !strings.Contains(w.Body.String(), httplimit.HeaderKey("X-Api-Key", acme, nil)) {
		t.Errorf("statistics: %s", w.Body)
	}
}
