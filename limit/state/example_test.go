package state_test

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// A request passes only if it passes every limit of its policy; a denied one changes nothing.
func ExampleState_Take() {
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{
		limit.PerSecond(2),
		limit.Sliding(3, time.Hour, time.Minute),
	}}
	start := time.Date(2026, 1, 1, 6, 5, 0, 0, time.UTC)

	var st state.State
	for _, after := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second, time.Hour} {
		verdict := st.Take(&policy, state.At{Micros: start.Add(after).UnixMicro()}, 1)
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

// Copies of a state can be joined in any order, any number of times: the one that knows more wins.
func ExampleMerge() {
	policy := limit.Policy{Limits: []limit.Limit{limit.PerHour(10)}}
	now := state.At{Micros: time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC).UnixMicro()}
	var st state.State
	st.Take(&policy, now, 3)
	lags := st.Clone() // as a replica does
	st.Take(&policy, now, 4)

	joined := state.Merge(lags, st, now)
	again := state.Merge(joined, lags, now)
	verdict := again.Peek(&policy, now, 1)
	fmt.Println(verdict.Binding().Remaining, "left")
	// Output: 3 left
}

// A receipt names the window that was charged: what is given back to it can't land in another one.
func ExampleState_Refund() {
	policy := limit.Policy{Limits: []limit.Limit{limit.PerMinute(10)}}
	start := time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)
	now := state.At{Micros: start.UnixMicro()}
	later := state.At{Micros: start.Add(2 * time.Minute).UnixMicro()}
	left := func(st *state.State, now state.At) int64 {
		verdict := st.Peek(&policy, now, 1)
		return verdict.Binding().Remaining
	}

	var st state.State
	verdict := st.Take(&policy, now, 4)
	receipt := verdict.Receipt()
	st.Refund(now, &receipt, 3)
	fmt.Println(left(&st, now), "left after 4 were taken and 3 given back")

	st.Take(&policy, later, 10)
	st.Refund(later, &receipt, 1)
	fmt.Println(left(&st, later), "left two minutes later")
	// Output:
	// 9 left after 4 were taken and 3 given back
	// 0 left two minutes later
}
