package lease_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

// A Lease goes around what counts: a Redis node, a router, a Dual. Here it is a Memory, to run anywhere.
func ExampleNew() {
	counts, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ls, err := lease.New(counts, lease.Config{Processes: 2, Batch: 50, Steady: true})
	if err != nil {
		log.Fatal(err)
	}
	policy := &limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerHour(1000)}}
	for range 200 {
		if _, err := ls.Take(context.Background(), backend.Request{Key: "user:42", Policy: policy, Cost: 1}); err != nil {
			log.Fatal(err)
		}
	}
	s := ls.Stats()
	fmt.Println("at most 10 calls for 200 requests:", s.Forwarded+s.Fetches <= 10)
	fmt.Println("less than a batch leased and not spent:", s.Stranded < 50)
	if err := ls.Close(); err != nil { // what is leased goes back
		log.Fatal(err)
	}
	// Output:
	// at most 10 calls for 200 requests: true
	// less than a batch leased and not spent: true
}
