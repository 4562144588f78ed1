package redisbackend_test

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/redisbackend"
)

// A client that would send a take twice is rejected, with all that is wrong with it.
func ExampleNew_rejected() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"}) // which retries three times by default
	defer client.Close()
	_, err := redisbackend.New(client, redisbackend.Config{})
	fmt.Println(err)
	// Output:
	// redis client: MaxRetries = 3: must be off (-1): a retry of a take would count twice
	// redis client: ContextTimeoutEnabled = false: must be true: without it a call outlives its context
}
