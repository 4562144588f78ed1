package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// keyBackend is where keys are counted.
type keyBackend interface {
	backend.Loader
	backend.Resetter
	Close() error
}

// keyCounts is where a key is counted.
type keyCounts struct {
	keyBackend
	group string // empty without a topology
	epoch uint64

	cluster *cluster.Cluster
	owners  []router.Group // who has counted the key, by the topology and those before it
}

// keyOptions are the flags of commands that look at a key's counts.
type keyOptions struct {
	cluster.Flags
	policies.Selector
}

func (o *keyOptions) register(cmd *cobra.Command) {
	o.Flags.Register(cmd)
	o.Selector.Register(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// withRequest calls f with the place of a key and a request under the policy of the flags.
func (o *keyOptions) withRequest(ctx context.Context, key string, changes bool, f func(*keyCounts, backend.Request) error) error {
	policy, err := o.Policy(key)
	if err != nil {
		return err
	}
	return o.withKey(ctx, key, changes, func(k *keyCounts) error {
		return f(k, backend.Request{Key: key, Policy: &policy, Cost: 1})
	})
}

// withKey calls f with the place of a key.
func (o *keyOptions) withKey(ctx context.Context, key string, changes bool, f func(*keyCounts) error) error {
	if key == "" {
		return cli.Usage(errors.New("KEY is empty"))
	}
	if err := o.OneServer(); err != nil {
		return err
	}
	c, err := o.Cluster(ctx)
	if err != nil {
		return err
	}
	// Each question has --timeout for itself: the search for what is in force asks all groups, and one that hangs must not
	// take the time that the key's own group needs.
	k, err := openKey(ctx, c, key, changes)
	if err != nil {
		return err
	}
	defer k.Close()
	return f(k)
}

// openKey opens where a key is counted, going by the topology that running processes use. A command that changes nothing
// leaves no notice either.
func openKey(ctx context.Context, c *cluster.Cluster, key string, changes bool) (*keyCounts, error) {
	cfg := c.BackendConfig()
	if len(c.Single) > 0 {
		b, err := backend.OpenRedis(&c.Single[0], cfg)
		return &keyCounts{keyBackend: b, cluster: c}, err
	}
	topology, err := c.InForce(c.ReadPublished(ctx))
	if err != nil {
		return nil, err
	}
	owners, err := keyOwners(topology, key)
	if err != nil {
		return nil, err
	}
	routing := router.Config{
		TopologyKeys: c.Trust.TopologyKeys, AllowedAddresses: c.Trust.AllowedAddresses,
		Redis: &c.Node, Sentinel: &c.Sentinel, Backend: cfg, ReadTimeout: c.Timeout,
		Heartbeat: -1, // then all is read from primaries, which know best
		TripAfter: -1,
	}
	if !changes {
		routing.Node = func(address string) (backend.Backend, error) {
			b, err := backend.OpenRedis(cluster.WithAddress(c.Node, address), cfg)
			return silentNode{b}, err
		}
	}
	r, err := router.Open(topology, routing)
	if err != nil {
		return nil, err
	}
	return &keyCounts{r, r.Owner(key), topology.Epoch, c, owners}, nil
}

// keyOwners are the groups that own a key by a topology or by those before it, as far as it names them.
func keyOwners(topology router.Topology, key string) (all []router.Group, err error) {
	for _, t := range cluster.TopologyHistory(&topology) {
		r, err := cluster.TopologyRing(t)
		if err != nil {
			return nil, err
		}
		owner := r.Owner(key)
		i := slices.IndexFunc(t.Groups, func(g router.Group) bool { return g.Name == owner })
		if !slices.ContainsFunc(all, func(g router.Group) bool { return g.Name == owner }) {
			all = append(all, t.Groups[i])
		}
	}
	return all, nil
}

// silentNode is a node on which a router leaves no notice.
type silentNode struct{ *backend.Redis }

func (q silentNode) Post(ctx context.Context, n backend.Notice) (backend.Notice, error) {
	n.Text = "" // it only asks
	return q.Redis.Post(ctx, n)
}

// limitState is what one limit has counted of a key.
type limitState struct {
	Limit     limit.Limit   `json:"limit"`
	Used      int64         `json:"used"`
	Remaining int64         `json:"remaining"`
	Quota     int64         `json:"quota"`
	Reset     cli.Timestamp `json:"reset,omitzero"` // when the full quota is back; not there where nothing is used
}

// limitStates reads what is counted of a key, limit by limit.
func (k *keyCounts) limitStates(ctx context.Context, req backend.Request) ([]limitState, backend.Snapshot, error) {
	snapshot, err := k.Load(ctx, req)
	if err != nil {
		return nil, snapshot, err
	}
	now := snapshot
	now.State = snapshot.State.Clone()
	verdict := now.Peek(&req)
	var all []limitState
	for status := range verdict.All() {
		s := limitState{Limit: status.Limit, Remaining: status.Remaining, Quota: status.Limit.Quota()}
		if s.Used = usedCost(snapshot, req.Key, status); s.Used > 0 {
			s.Reset = cli.Timestamp(status.ResetAt)
		}
		all = append(all, s)
	}
	return all, snapshot, nil
}

// usedCost is what a limit has counted. Where its Max was lowered that is more than the Max, and nothing remains: so it is seen
// under a limit of the same windows which nothing exceeds.
func usedCost(snapshot backend.Snapshot, key string, status limit.Status) int64 {
	l := status.Limit
	if l.Algorithm == limit.Bucket {
		return l.Burst - status.Remaining
	}
	snapshot.State = snapshot.State.Clone()
	policy := limit.Policy{Limits: []limit.Limit{l}}
	if l.Algorithm == limit.SlidingWindow {
		n, _, _ := snapshot.State.Usage(&policy, limit.At{Micros: snapshot.Now}, l.Window)
		return n
	}
	policy.Limits[0].Max = limit.MaxCount
	verdict := snapshot.Peek(&backend.Request{Key: key, Policy: &policy, Cost: 1})
	return limit.MaxCount - verdict.Binding().Remaining
}

// checkNotSealed says that a server has sealed the key: it is counted elsewhere. A router would have followed.
func checkNotSealed(snapshot backend.Snapshot) error {
	adopted, sealed := snapshot.State.Stamp(limit.Topology, limit.At{Micros: snapshot.Now})
	if sealed > adopted {
		return fmt.Errorf("this server has handed the key over under epoch %d: ask with --topology", sealed)
	}
	return nil
}
