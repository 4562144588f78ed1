package memory_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

// A Memory counts for this process alone. What a backend answers says who decided and how sure that is.
func ExampleNew() {
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
