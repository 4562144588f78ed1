package limit_test

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func ExampleParse() {
	for _, text := range []string{"100/1m", "240/1h~1m", "10/1s+20", "daily=1000/24h", "0/1m"} {
		if l, err := limit.Parse(text); err != nil {
			fmt.Println(err)
		} else {
			fmt.Println(l, l.Algorithm)
		}
	}
	// Output:
	// 100/1m fixed
	// 240/1h~1m sliding
	// 10/1s+20 bucket
	// daily=1000/24h fixed
	// limit: parse "0/1m": max = 0: must be from 1 to 9007199254740991
}

// Where two windows meet, a fixed limit may admit twice its Max in a moment; a sliding one does not, and a bucket gives
// back token by token.
func ExampleSliding() {
	start := time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)
	for _, l := range []limit.Limit{
		limit.PerMinute(10).Aligned(),
		limit.Sliding(10, time.Minute, 10*time.Second),
		limit.TokenBucket(10, time.Minute, 10),
	} {
		policy := limit.Policy{Limits: []limit.Limit{l}}
		var st state.State
		admitted := 0
		for _, second := range []int{58, 62} { // before and after a full minute
			now := state.At{Micros: start.Add(time.Duration(second) * time.Second).UnixMicro()}
			for range 10 {
				if verdict := st.Take(&policy, now, 1); verdict.Allowed {
					admitted++
				}
			}
		}
		fmt.Println(l, "admits", admitted, "within 4 s")
	}
	// Output:
	// 10/1m@aligned admits 20 within 4 s
	// 10/1m~10s admits 10 within 4 s
	// 10/1m+10 admits 10 within 4 s
}

// All that is wrong is told at once, with what would be right.
func ExamplePolicy_Validate() {
	policy := limit.Policy{Name: "API", Limits: []limit.Limit{limit.PerSecond(10), limit.PerSecond(20)}}
	fmt.Println(policy.Validate())
	fmt.Println(policy.CheckCost(11))
	// Output:
	// policy name = "API": must match [a-z0-9_-]{1,32}
	// policy "API": limit 2: window = 20/1s: limit 1 counts the same window already
	// cost = 11: must be at most 10 under limit 10/1s
}
