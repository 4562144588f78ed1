//go:build unix

package testserver_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/testserver"
)

func TestSentinels(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	replica := testserver.Replica(t, primary)
	for _, s := range testserver.Sentinels(t, "main", primary, 1) {
		replicas, err := s.Sentinel().Replicas(t.Context(), "main").Result()
		if err != nil || len(replicas) != 1 || "127.0.0.1:"+replicas[0]["port"] != replica.Addr {
			t.Errorf("%s knows %v, %v", s.Addr, replicas, err)
		}
	}
}

func TestClusterOfShards(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 1)
	var held int64
	for _, shard := range shards {
		n, err := shard.Primary.Client().Do(t.Context(), "CLUSTER", "COUNTKEYSINSLOT", 0).Int64()
		if err != nil || len(shard.Replicas) != 1 {
			t.Errorf("%d, %v", n, err)
		}
		held += n
	}
	if held != 0 {
		t.Errorf("%d keys", held)
	}
}
