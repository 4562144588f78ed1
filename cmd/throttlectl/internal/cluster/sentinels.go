package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/router"
)

// sentinelView is what sentinels say of a group.
type sentinelView struct {
	epoch    int64
	primary  string
	replicas []string
}

// sentinelView asks all sentinels of a group and believes who knows of the newest failover, as routers do; of several, most of them.
func (s *Cluster) sentinelView(ctx context.Context, g *router.Group) (best sentinelView, err error) {
	said := make([]sentinelView, len(g.Sentinels))
	errs := make([]error, len(g.Sentinels))
	var asked sync.WaitGroup
	for i, address := range g.Sentinels {
		asked.Go(func() { said[i], errs[i] = s.askSentinel(ctx, address, g.Master) })
	}
	asked.Wait()
	votes := make(map[string]int)
	for _, one := range said {
		votes[one.primary]++
	}
	for i, one := range said {
		newer := one.epoch > best.epoch || one.epoch == best.epoch && votes[one.primary] > votes[best.primary]
		if errs[i] == nil && (best.primary == "" || newer) {
			best = one
		}
	}
	if best.primary == "" {
		return best, fmt.Errorf("no sentinel names the primary: %w", errors.Join(errs...))
	}
	return best, nil
}

func (s *Cluster) askSentinel(ctx context.Context, address, master string) (sentinelView, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	client := redis.NewSentinelClient(WithAddress(s.Sentinel, address))
	defer client.Close()
	m, err := client.Master(ctx, master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	epoch, _ := strconv.ParseInt(m["config-epoch"], 10, 64)
	seen := sentinelView{epoch: epoch, primary: net.JoinHostPort(m["ip"], m["port"])}
	replicas, err := client.Replicas(ctx, master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	for _, r := range replicas {
		seen.replicas = append(seen.replicas, net.JoinHostPort(r["ip"], r["port"]))
	}
	return seen, nil
}
