package limit_test

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A request passes only if it passes every limit of its policy; a denied one changes nothing.
func ExampleState_Take() {
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{
		limit.PerSecond(2),
		limit.Sliding(3, time.Hour, time.Minute),
	}}
	start := time.Date(2026, 1, 1, 6, 5, 0, 0, time.UTC)

	var state limit.State
	for _, after := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second, time.Hour} {
		verdict := state.Take(&policy, limit.At{Micros: start.Add(after).UnixMicro()}, 1)
		binding := verdict.Binding()
		fmt.Printf("%8s allowed=%-5v %-8s remaining=%d retry=%s\n",
			after, verdict.Allowed, binding.Limit, binding.Remaining, binding.RetryAfter)
	}
	// Output:
	//       0s allowed=true  2/1s     remaining=1 retry=0s
	//       0s allowed=true  2/1s     remaining=0 retry=0s
	//       0s allowed=false 2/1s     remaining=0 retry=1s
	//       1s allowed=true  3/1h~1m  remaining=0 retry=0s
	//       2s allowed=false 3/1h~1m  remaining=0 retry=59m58s
	//   1h0m0s allowed=true  2/1s     remaining=1 retry=0s
}

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
		var state limit.State
		admitted := 0
		for _, second := range []int{58, 62} { // before and after a full minute
			now := limit.At{Micros: start.Add(time.Duration(second) * time.Second).UnixMicro()}
			for range 10 {
				if verdict := state.Take(&policy, now, 1); verdict.Allowed {
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

// Copies of a state can be joined in any order, any number of times: the one that knows more wins.
func ExampleMerge() {
	policy := limit.Policy{Limits: []limit.Limit{limit.PerHour(10)}}
	now := limit.At{Micros: time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC).UnixMicro()}
	var state limit.State
	state.Take(&policy, now, 3)
	lags := state.Clone() // as a replica does
	state.Take(&policy, now, 4)

	joined := limit.Merge(lags, state, now)
	again := limit.Merge(joined, lags, now)
	verdict := again.Peek(&policy, now, 1)
	fmt.Println(verdict.Binding().Remaining, "left")
	// Output: 3 left
}

// A receipt names the window that was charged: what is given back to it can't land in another one.
func ExampleState_Refund() {
	policy := limit.Policy{Limits: []limit.Limit{limit.PerMinute(10)}}
	start := time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)
	now := limit.At{Micros: start.UnixMicro()}
	later := limit.At{Micros: start.Add(2 * time.Minute).UnixMicro()}
	left := func(state *limit.State, now limit.At) int64 {
		verdict := state.Peek(&policy, now, 1)
		return verdict.Binding().Remaining
	}

	var state limit.State
	verdict := state.Take(&policy, now, 4)
	receipt := verdict.Receipt()
	state.Refund(now, &receipt, 3)
	fmt.Println(left(&state, now), "left after 4 were taken and 3 given back")

	state.Take(&policy, later, 10)
	state.Refund(later, &receipt, 1)
	fmt.Println(left(&state, later), "left two minutes later")
	// Output:
	// 9 left after 4 were taken and 3 given back
	// 0 left two minutes later
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
