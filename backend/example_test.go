package backend_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

// A Lease goes around what counts: a Redis node, a router, a Dual. Here it is a Memory, to run anywhere.
func ExampleNewLease() {
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

// A Memory counts for this process alone. What a backend answers says who decided and how sure that is.
func ExampleNewMemory() {
	counts, err := memory.New(memory.Config{MaxKeys: 10_000})
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	policy := &limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerHour(2)}}
	for range 3 {
		result, err := counts.Take(context.Background(), backend.Request{Key: "user:42", Policy: policy, Cost: 1})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Allowed, result.Binding().Remaining, result.Source, result.Guarantee)
	}
	// Output:
	// true 1 local exact
	// true 0 local exact
	// false 0 local exact
}

// A key that changes sides takes its counts along, forward and back. The two sides would be a Memcached and a router, and
// Decide that of a feature flag.
func ExampleNewDual() {
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

// An error says what kind it is, and whether the take may have been counted all the same. It is never retried.
func ExampleError() {
	counts, err := redisbackend.Open(&redis.Options{Addr: "localhost:1"}, redisbackend.Config{}) // nobody is there
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	policy := &limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerHour(10)}}
	_, err = counts.Take(context.Background(), backend.Request{Key: "user:42", Policy: policy, Cost: 1})
	if failed, ok := errors.AsType[*backend.Error](err); ok {
		fmt.Println(failed.Kind, "may have charged:", failed.MayHaveCharged)
	}
	// Output: unavailable may have charged: false
}
