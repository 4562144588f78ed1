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

// sentinelView is a group as a sentinel sees it.
type sentinelView struct {
	epoch    int64
	primary  string
	replicas []string
}

// sentinelView asks all sentinels of a group, and returns the view with the newest failover, as routers do: of several, the
// most frequent one.
func (c *Cluster) sentinelView(ctx context.Context, g *router.Group) (best sentinelView, err error) {
	errs := make([]error, len(g.Sentinels))
	views := make([]sentinelView, len(g.Sentinels))
	var running sync.WaitGroup
	for i, address := range g.Sentinels {
		running.Go(func() { views[i], errs[i] = c.askSentinel(ctx, address, g.Master) })
	}
	running.Wait()
	votes := make(map[string]int)
	for _, one := range views {
		votes[one.primary]++
	}
	for i, one := range views {
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

func (c *Cluster) askSentinel(ctx context.Context, address, master string) (sentinelView, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	client := redis.NewSentinelClient(WithAddress(c.Sentinel, address))
	defer client.Close()
	m, err := client.Master(ctx, master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	epoch, _ := strconv.ParseInt(m["config-epoch"], 10, 64)
	view := sentinelView{epoch: epoch, primary: net.JoinHostPort(m["ip"], m["port"])}
	replicas, err := client.Replicas(ctx, master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	for _, r := range replicas {
		view.replicas = append(view.replicas, net.JoinHostPort(r["ip"], r["port"]))
	}
	return view, nil
}
