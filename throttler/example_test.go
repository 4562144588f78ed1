package throttler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

func Example() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2), limit.PerDay(240)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()

	for range 3 {
		decision, err := t.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(decision.Allowed, decision.Limit, decision.Remaining, decision.Source, decision.Guarantee)
	}
	// Output:
	// true 2/1m 1 local exact
	// true 2/1m 0 local exact
	// false 2/1m 0 local exact
}

// A caller that doesn't know a request's cost before the work reserves the most it can be, and settles afterwards.
func ExampleThrottler_Reserve() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "tokens", Limits: []limit.Limit{limit.TokenBucket(1000, time.Minute, 10_000)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()

	reservation, err := t.Reserve(ctx, "tenant:7", 4000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reservation.Decision().Allowed, reservation.Decision().Remaining)
	if err := reservation.Settle(ctx, 1500); err != nil {
		log.Fatal(err)
	}
	left, err := t.Peek(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(left.Remaining)
	// Output:
	// true 6000
	// 8500
}
