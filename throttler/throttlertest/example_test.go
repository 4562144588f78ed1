package throttlertest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// A handler whose limit is exhausted.
func ExampleDenying() {
	limited, err := httplimit.New(throttlertest.Denying(30*time.Second), httplimit.Config{Key: httplimit.ClientAddr()})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limited.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fmt.Println("served") }))

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code, w.Header().Get("Retry-After"))
	// Output: 429 30
}

// A handler without limits.
func ExampleAllowing() {
	d, err := throttlertest.Allowing().Allow(context.Background(), "user:42")
	fmt.Println(d.Allowed, err)
	// Output: true <nil>
}

// What the code under test asks for, and what it does when the servers are down.
func ExampleScripted() {
	limits, script := throttlertest.Scripted(throttler.Config{Failure: throttler.FailClosed, RetryAfter: 2 * time.Second},
		throttlertest.Allow(1), throttlertest.Deny(time.Minute), throttlertest.Fail(nil))
	ctx := context.Background()
	for range 3 {
		d, err := limits.AllowN(ctx, "user:42", 5)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, d.Source, throttler.Reason(d.Cause), err)
	}
	for _, c := range script.Calls()[:1] {
		fmt.Println(c.Op, c.Key, c.Policy, c.Cost)
	}
	// Output:
	// true 1 0s local  <nil>
	// false 0 1m0s local  <nil>
	// false 0 2s fallback unavailable <nil>
	// take user:42 test 5
}

// Real limits, and a window that ends when the test says so.
func ExampleNew() {
	limits, clock := throttlertest.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}},
	})
	ask := func() {
		d, err := limits.Allow(context.Background(), "user:42")
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, err)
	}
	ask()
	clock.Advance(45 * time.Second)
	ask()
	ask()
	clock.Advance(15 * time.Second)
	ask()
	// Output:
	// true 1 0s <nil>
	// true 0 0s <nil>
	// false 0 15s <nil>
	// true 1 0s <nil>
}
