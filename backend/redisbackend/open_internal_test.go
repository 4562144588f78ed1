package redisbackend

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestClusterTimeouts: a cluster's client waits for nothing longer than a call, as that of a node.
func TestClusterTimeouts(t *testing.T) {
	long := &redis.Options{DialTimeout: time.Hour, ReadTimeout: time.Hour, WriteTimeout: time.Hour, PoolTimeout: time.Hour}
	got := clusterOptions(nil, long, Config{Timeout: time.Second})
	if got.DialTimeout != time.Second || got.ReadTimeout != time.Second || got.WriteTimeout != time.Second || got.PoolTimeout != time.Second {
		t.Errorf("the client waits for %s, %s, %s and %s", got.DialTimeout, got.ReadTimeout, got.WriteTimeout, got.PoolTimeout)
	}
}
