package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// counts is where keys are counted.
type counts interface {
	backend.Loader
	backend.Resetter
	Close() error
}

// place is where a key is counted.
type place struct {
	counts
	group string // empty without a topology
	epoch uint64

	site   *site
	owners []router.Group // who has counted the key, by the topology and those before it
}

// keyOptions are the flags of commands that look at a key's counts.
type keyOptions struct {
	serverFlags
	policyFlags
}

func (o *keyOptions) register(cmd *cobra.Command) {
	o.serverFlags.register(cmd)
	o.policyFlags.register(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// ask calls f with the place of a key and a request under the policy of the flags.
func (o *keyOptions) ask(cmd *cobra.Command, key string, changes bool, f func(context.Context, *place, backend.Request) error) error {
	policy, err := o.policy(key)
	if err != nil {
		return err
	}
	return o.open(cmd, key, changes, func(ctx context.Context, p *place) error {
		return f(ctx, p, backend.Request{Key: key, Policy: &policy, Cost: 1})
	})
}

// open calls f with the place of a key.
func (o *keyOptions) open(cmd *cobra.Command, key string, changes bool, f func(context.Context, *place) error) error {
	if key == "" {
		return usage(errors.New("KEY is empty"))
	}
	if err := o.oneServer(); err != nil {
		return err
	}
	s, err := o.site()
	if err != nil {
		return err
	}
	// Each question has --timeout for itself: the search for what is in force asks all groups, and one that hangs must not
	// take the time that the key's own group needs.
	ctx := cmd.Context()
	p, err := s.place(ctx, key, changes)
	if err != nil {
		return err
	}
	defer p.Close()
	return f(ctx, p)
}

// place opens where a key is counted, going by the topology that running processes use. A command that changes nothing
// leaves no notice either.
func (s *site) place(ctx context.Context, key string, changes bool) (*place, error) {
	cfg := redisbackend.Config{Prefix: s.prefix, Timeout: s.timeout}
	if len(s.single) > 0 {
		b, err := redisbackend.Open(&s.single[0], cfg)
		return &place{counts: b, site: s}, err
	}
	boards, done := s.boards(ctx, s.topology.Groups)
	defer done()
	topology, err := s.inForce(readBoards(ctx, boards))
	if err != nil {
		return nil, err
	}
	owners, err := ownersOf(topology, key)
	if err != nil {
		return nil, err
	}
	routing := router.Config{
		TopologyKeys: s.trust.TopologyKeys, AllowedAddresses: s.trust.AllowedAddresses,
		Redis: &s.node, Sentinel: &s.sentinel, Backend: cfg, ReadTimeout: s.timeout,
		Heartbeat: -1, // then all is read from primaries, which know best
		TripAfter: -1,
	}
	if !changes {
		routing.Node = func(address string) (backend.Backend, error) {
			b, err := redisbackend.Open(at(s.node, address), cfg)
			return quiet{b}, err
		}
	}
	r, err := router.Open(topology, routing)
	if err != nil {
		return nil, err
	}
	return &place{r, r.Owner(key), topology.Epoch, s, owners}, nil
}

// ownersOf are the groups that own a key by a topology or by those before it, as far as it names them.
func ownersOf(topology router.Topology, key string) (all []router.Group, err error) {
	for _, t := range chainOf(&topology) {
		r, err := ringOf(t)
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

// quiet is a node on which a router leaves no notice.
type quiet struct{ *redisbackend.Redis }

func (q quiet) Publish(ctx context.Context, n backend.Announcement) (backend.Announcement, error) {
	n.Text = "" // it only asks
	return q.Redis.Publish(ctx, n)
}

// limitState is what one limit has counted of a key.
type limitState struct {
	Limit     limit.Limit `json:"limit"`
	Used      int64       `json:"used"`
	Remaining int64       `json:"remaining"`
	Quota     int64       `json:"quota"`
	Reset     instant     `json:"reset,omitzero"` // when the full quota is back; not there where nothing is used
}

// look reads what is counted of a key, limit by limit.
func (p *place) look(ctx context.Context, req backend.Request) ([]limitState, backend.Snapshot, error) {
	snapshot, err := p.Load(ctx, req)
	if err != nil {
		return nil, snapshot, err
	}
	now := snapshot
	now.State = snapshot.State.Clone()
	verdict := now.Peek(&req)
	var all []limitState
	for status := range verdict.All() {
		s := limitState{Limit: status.Limit, Remaining: status.Remaining, Quota: status.Limit.Quota()}
		if s.Used = used(snapshot, req.Key, status); s.Used > 0 {
			s.Reset = instant(status.ResetAt)
		}
		all = append(all, s)
	}
	return all, snapshot, nil
}

// used is what a limit has counted. Where its Max was lowered that is more than the Max, and nothing remains: so it is seen
// under a limit of the same windows which nothing exceeds.
func used(snapshot backend.Snapshot, key string, status limit.Status) int64 {
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

// moved says that a server has sealed the key: it is counted elsewhere. A router would have followed.
func moved(snapshot backend.Snapshot) error {
	adopted, sealed := snapshot.State.Fence(state.Topology, state.At{Micros: snapshot.Now})
	if sealed > adopted {
		return fmt.Errorf("this server has handed the key over under epoch %d: ask with --topology", sealed)
	}
	return nil
}
