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
	// limit: parse "0/1m": limit: max = 0: must be from 1 to 9007199254740991
}
