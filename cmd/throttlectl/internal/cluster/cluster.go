// Package cluster reaches the servers of the applications: what the command line says of them, who is in which group, and
// which topology is in force.
package cluster

import (
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/router"
)

// Cluster is the servers that a command is about: those of a topology, or single ones.
type Cluster struct {
	Topology       router.Topology // without groups if Single has servers
	Node, Sentinel redis.Options   // how to log in at the topology's servers; WithAddress adds the address
	Single         []redis.Options
	Prefix         string
	Timeout        time.Duration
	Trust          router.Config // what a published topology is held to
}

// BackendConfig is how all servers are opened.
func (c *Cluster) BackendConfig() redisbackend.Config {
	return redisbackend.Config{Prefix: c.Prefix, Timeout: c.Timeout}
}

// Parallel calls f for all at once, so that a server that hangs delays no other, and keeps the order.
func Parallel[T, R any](all []T, f func(T) R) []R {
	answers := make([]R, len(all))
	var running sync.WaitGroup
	for i, one := range all {
		running.Go(func() { answers[i] = f(one) })
	}
	running.Wait()
	return answers
}
