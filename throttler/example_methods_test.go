package throttler_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Tiers are policies of one name: a user who moves to another keeps what was used.
func ExampleConfig() {
	paid := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(1000)}}
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(60)}},
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			if strings.HasPrefix(key, "paid:") {
				return &paid
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()

	for _, key := range []string{"free:1", "paid:2"} {
		decision, err := t.Allow(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(decision.Limit, decision.Remaining)
	}
	// Output:
	// 60/1m 59
	// 1000/1m 999
}

// The user and the address must both have quota left, or neither is charged.
func ExampleThrottler_AllowAll() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "login", Limits: []limit.Limit{limit.PerHour(5)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()

	for _, user := range []string{"alice", "bob", "carol"} {
		decision, err := t.AllowAll(ctx, []string{"user:" + user, "addr:192.0.2.1"}, 2)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user, decision.Allowed, decision.Remaining)
	}
	carol, err := t.Peek(ctx, "user:carol")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(carol.Remaining)
	// Output:
	// alice true 3
	// bob true 1
	// carol false 1
	// 5
}

// A sliding limit also tells what was used lately.
func ExampleThrottler_Usage() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.Sliding(1000, 5*time.Minute, 10*time.Second)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()

	if _, err := t.AllowN(ctx, "user:42", 7); err != nil {
		log.Fatal(err)
	}
	for _, interval := range []time.Duration{30 * time.Second, 5 * time.Minute} {
		used, err := t.Usage(ctx, "user:42", interval)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(interval, used)
	}
	// Output:
	// 30s 7
	// 5m0s 7
}

// A Counter denies nothing: Usage says how often a key did something lately.
func ExampleThrottler_Usage_counter() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "failed-logins", Limits: []limit.Limit{limit.Counter(time.Hour, time.Minute)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()

	for range 12 {
		if _, err := t.Allow(ctx, "account:42"); err != nil { // counts
			log.Fatal(err)
		}
	}
	failed, err := t.Usage(ctx, "account:42", 10*time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(failed, "failed logins in ten minutes; ask for a second factor:", failed > 10)
	// Output:
	// 12 failed logins in ten minutes; ask for a second factor: true
}

// Wait is for work that may be late but not lost.
func ExampleThrottler_Wait() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "mail", Limits: []limit.Limit{limit.TokenBucket(100, time.Second, 1)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for range 3 {
		decision, err := t.Wait(ctx, "smtp", 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// true
	// true
}
