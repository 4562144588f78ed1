package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/router"
)

// sentinelView is a group as a sentinel sees it.
type sentinelView struct {
	epoch    int64
	primary  string
	replicas []string
}

// sentinelServers are the servers that the sentinels of a group name, and the sentinels.
type sentinelServers struct {
	*Cluster
	*router.Group
}

func (s sentinelServers) primary(ctx context.Context) (primary, error) {
	view, err := s.view(ctx)
	if err != nil {
		return primary{node: "sentinels"}, err
	}
	return primary{node: view.primary}, nil
}

func (s sentinelServers) members(ctx context.Context) (all []Member, f finding.List) {
	for _, address := range s.Sentinels {
		all = append(all, Member{s.Name, address, RoleSentinel, *WithAddress(s.Sentinel, address), s.Prefix})
	}
	view, err := s.view(ctx)
	if err != nil {
		f.Add(finding.Critical, "sentinel", err.Error(), "Start the sentinels; routers that start now have no primary to ask.")
		return all, f
	}
	all = append(all, s.member(s.Group, view.primary, RolePrimary))
	for _, address := range view.replicas {
		all = append(all, s.member(s.Group, address, RoleReplica))
	}
	return all, s.check(ctx, view)
}

// check compares what all sentinels say.
func (s sentinelServers) check(ctx context.Context, newest sentinelView) (f finding.List) {
	type answer struct {
		sentinelView
		err error
	}
	for i, a := range Parallel(s.Sentinels, func(address string) answer {
		seen, err := s.ask(ctx, address)
		return answer{seen, err}
	}) {
		var reply redis.Error
		switch one := (finding.Finding{Severity: finding.Warning, Check: "sentinel", Server: s.Sentinels[i]}); {
		case errors.As(a.err, &reply):
			one.What, one.Detail, one.Do = "refuses", reply.Error(), "Have it monitor the master by that name, and look at the credentials."
			f = append(f, one)
		case a.err != nil: // unreachable: a finding of the member itself
		case a.primary != newest.primary:
			one.What, one.Detail = "disagrees on the primary", fmt.Sprintf("names %s as primary, others name %s", a.primary, newest.primary)
			one.Do = "Look whether it is cut off from the others; SENTINEL RESET makes it look anew."
			f = append(f, one)
		}
	}
	return f
}

// view asks all sentinels, and returns the view with the newest failover, as routers do: of several, the most frequent one.
func (s sentinelServers) view(ctx context.Context) (best sentinelView, err error) {
	errs := make([]error, len(s.Sentinels))
	views := make([]sentinelView, len(s.Sentinels))
	var running sync.WaitGroup
	for i, address := range s.Sentinels {
		running.Go(func() { views[i], errs[i] = s.ask(ctx, address) })
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

func (s sentinelServers) ask(ctx context.Context, address string) (sentinelView, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	client := redis.NewSentinelClient(WithAddress(s.Sentinel, address))
	defer client.Close()
	m, err := client.Master(ctx, s.Master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	epoch, _ := strconv.ParseInt(m["config-epoch"], 10, 64)
	view := sentinelView{epoch: epoch, primary: net.JoinHostPort(m["ip"], m["port"])}
	replicas, err := client.Replicas(ctx, s.Master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	for _, r := range replicas {
		view.replicas = append(view.replicas, net.JoinHostPort(r["ip"], r["port"]))
	}
	return view, nil
}
