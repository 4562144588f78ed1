// Package inspect has the commands about keys: what is counted of one, which group owns it, and how a ring shares keys out.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// keyBackend is what the commands need of a server or a router.
type keyBackend interface {
	backend.Loader
	backend.Resetter
	backend.Granter
	Close() error
}

// keyCounts is an open connection to where a key is counted.
type keyCounts struct {
	keyBackend
	group string // empty without a topology
	epoch uint64

	cluster *cluster.Cluster
	owners  []router.Group // that have counted the key, by the topology and those before it
}

// keyOptions are the flags of commands about a key's counts.
type keyOptions struct {
	cluster.Flags
	policies.Selector
}

func (o *keyOptions) register(cmd *cobra.Command) {
	o.Flags.Register(cmd)
	o.Selector.Register(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// keyAction is what a command does with what is stored of a key under the policy of its flags.
type keyAction func(k *keyCounts, req backend.Request, stored backend.Snapshot) error

// withStored calls f if something is stored of the key under the policy of the flags.
func (o *keyOptions) withStored(ctx context.Context, key string, changes bool, f keyAction) error {
	policy, err := o.Policy(key)
	if err != nil {
		return err
	}
	return o.withKey(ctx, key, changes, func(k *keyCounts) error {
		req := backend.Request{Key: key, Policy: &policy, Cost: 1}
		stored, err := k.load(ctx, req)
		if err == nil {
			err = o.checkStored(ctx, k, stored, req)
		}
		if err != nil {
			return err
		}
		return f(k, req, stored)
	})
}

// withKey connects to where a key is counted, and calls f. Only a command that changes something may publish a topology.
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
	// Each call has a --timeout of its own: looking for the topology in force calls all groups, and one that hangs must not take
	// the time that the key's group needs.
	k, err := openKey(ctx, c, key, changes)
	if err != nil {
		return err
	}
	defer k.Close()
	return f(k)
}

// openKey connects to where a key is counted, by the topology that running processes use.
func openKey(ctx context.Context, c *cluster.Cluster, key string, changes bool) (*keyCounts, error) {
	cfg := c.BackendConfig()
	if len(c.Single) > 0 {
		b, err := redisbackend.Open(&c.Single[0], cfg)
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
		Heartbeat: -1, // then all reads go to primaries
		TripAfter: -1,
	}
	if !changes {
		routing.Node = func(address string) (backend.Backend, error) {
			b, err := redisbackend.Open(cluster.WithAddress(c.Node, address), cfg)
			return silentNode{b}, err
		}
	}
	r, err := router.Open(topology, routing)
	if err != nil {
		return nil, err
	}
	return &keyCounts{r, r.Owner(key), topology.Epoch, c, owners}, nil
}

// keyOwners are the groups that own a key by a topology and by those before it.
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

// silentNode is a node on which a router publishes nothing.
type silentNode struct{ *redisbackend.Redis }

// Publish only reads.
func (q silentNode) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	stored, err := q.Published(ctx)
	if stored.Version <= n.Version {
		stored.Text = ""
	}
	return stored, err
}

// limitState is what one limit has counted of a key.
type limitState struct {
	Limit     limit.Limit   `json:"limit"`
	Used      int64         `json:"used"`
	Remaining int64         `json:"remaining"`
	Quota     int64         `json:"quota"`
	Reset     cli.Timestamp `json:"reset,omitzero"` // when the full quota is back; not there where nothing is used
}

// limitStates is what each limit of the request's policy has counted.
func limitStates(stored backend.Snapshot, req backend.Request) (all []limitState) {
	now := stored
	now.State = stored.State.Clone()
	verdict := now.Peek(&req)
	for status := range verdict.All() {
		s := limitState{Limit: status.Limit, Remaining: status.Remaining, Quota: status.Limit.Quota()}
		if s.Used = usedCost(stored, req.Key, status); s.Used > 0 {
			s.Reset = cli.Timestamp(status.ResetAt)
		}
		all = append(all, s)
	}
	return all
}

// usedCost is what a limit has counted, also above its Max if that was lowered: it is read under a limit of the same windows
// with the largest Max.
func usedCost(snapshot backend.Snapshot, key string, status limit.Status) int64 {
	l := status.Limit
	if l.Algorithm == limit.Bucket {
		return l.Burst - status.Remaining
	}
	snapshot.State = snapshot.State.Clone()
	policy := limit.Policy{Limits: []limit.Limit{l}}
	if l.Algorithm == limit.SlidingWindow {
		n, _, _ := snapshot.State.Usage(&policy, state.At{Micros: snapshot.Now}, l.Window)
		return n
	}
	policy.Limits[0].Max = limit.MaxCount
	verdict := snapshot.Peek(&backend.Request{Key: key, Policy: &policy, Cost: 1})
	return limit.MaxCount - verdict.Binding().Remaining
}

// load loads what is stored of a key. What a server has sealed is frozen, and counted elsewhere since; a router is redirected to
// another group, but not to the other side of a migration.
func (k *keyCounts) load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	stored, err := k.Load(ctx, req)
	if err != nil {
		return stored, err
	}
	moved, ok := errors.AsType[*state.MovedError](stored.Moved())
	switch {
	case !ok:
		return stored, nil
	case moved.Mover == state.Topology:
		return stored, &handedOverError{fmt.Sprintf("this server has handed the key over under epoch %d: ask with --topology", moved.Version)}
	default:
		return stored, &handedOverError{fmt.Sprintf("the key is counted on the other side of a migration, which took it over under version %d: "+
			"ask there, or an application (Throttler.Peek, Usage, Grant, Reset)", moved.Version)}
	}
}

// handedOverError says that what a server still holds of a key is out of date, and where its counts are.
type handedOverError struct{ text string }

func (e *handedOverError) Error() string { return e.text }
