package dual_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

// A key that changes sides takes its counts along, forward and back. The two sides would be a Memcached and a router, and
// Decide that of a feature flag.
func ExampleNew() {
	var sides [2]*memory.Memory
	for i := range sides {
		var err error
		if sides[i], err = memory.New(memory.Config{}); err != nil {
			log.Fatal(err)
		}
	}
	useNew, version := false, uint64(1)
	counts, err := dual.New(dual.Config{
		Old: sides[0], New: sides[1], CarryOver: true,
		Decide: func(string) (bool, uint64) { return useNew, version },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	take := func() {
		policy := &limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerHour(10)}}
		result, err := counts.Take(context.Background(), backend.Request{Key: "user:42", Policy: policy, Cost: 1})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("new side:", useNew, "remaining:", result.Binding().Remaining)
	}
	take()
	useNew, version = true, 2
	take()
	useNew, version = false, 3
	take()
	// Output:
	// new side: false remaining: 9
	// new side: true remaining: 8
	// new side: false remaining: 7
}
