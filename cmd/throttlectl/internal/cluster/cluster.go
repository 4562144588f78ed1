package cluster

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/router"
)

// Cluster is the servers that a command is about.
type Cluster struct {
	Topology       router.Topology // without groups if there is one server only
	Node, Sentinel redis.Options   // of a topology's: templates, without the address
	Single         []redis.Options
	Prefix         string
	Timeout        time.Duration
	Trust          router.Config // what a published topology is held to
}

// AskAll asks all at once and keeps the order.
func AskAll[T, R any](all []T, ask func(T) R) []R {
	answers := make([]R, len(all))
	var asked sync.WaitGroup
	for i, one := range all {
		asked.Go(func() { answers[i] = ask(one) })
	}
	asked.Wait()
	return answers
}
