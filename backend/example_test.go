package backend_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
)

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
