package router

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/ring"
)

// Open makes a router of Redis nodes. It does no network I/O; Ping does. It keeps copies of both arguments. Its error joins all
// problems of the topology and the configuration, as [*ConfigError] values for the most part.
//
// The primary of a group with sentinels is not known yet: the router polls them at once, in the background. Calls before the first
// answer wait for it, no longer than a call may take, and then fail as [backend.Unavailable].
func Open(topology Topology, cfg Config) (*Router, error) {
	topology, cfg = topology.clone(), cfg.withDefaults().clone()
	errs := []error{topology.Validate(), cfg.validate(), topology.checkConfig(cfg), topology.history(0)}
	if cfg.Seed != 0 {
		errs = append(errs, &ConfigError{
			Field: "Seed", Value: strconv.FormatUint(cfg.Seed, 10), Bound: "must be 0: the topology has the seed",
		})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	o := &opener{cfg: cfg, events: newEvents(cfg.OnEvent)}
	r := newRouter(cfg, o.events, o)
	o.adopt = r.adoptView
	b := o.builder(nil)
	t := &routingTable{placement: b.placement(topology)}
	t.history = b.history(t.placement, nil, topology.Previous, time.Now()) // left just now, for all that is known here
	if err := b.finish(); err != nil {
		r.shutdown()
		return nil, err
	}
	r.start(t)
	r.running.Go(r.syncLoop)
	return r, nil
}

// checkConfig refuses what a router with a configuration can't do with this topology.
func (t *Topology) checkConfig(cfg Config) error {
	if len(t.Signature) > 0 && len(cfg.TopologyKeys) > 0 {
		if err := t.Verify(cfg.TopologyKeys...); err != nil {
			return err
		}
	}
	if cfg.Redis == nil || cfg.Redis.DB == 0 {
		return nil
	}
	for p := t; p != nil; p = p.Previous {
		if slices.ContainsFunc(p.Groups, func(g Group) bool { return g.hasSlots() }) {
			return &ConfigError{Field: "Redis.DB", Value: strconv.Itoa(cfg.Redis.DB), Bound: "must be 0: a Redis Cluster has no other"}
		}
	}
	return nil
}

// opener makes the nodes of topologies.
type opener struct {
	cfg    Config
	events *events
	adopt  func(*sentinelWatcher, sentinelView) error
}

// open makes the backend of a node.
func (o *opener) open(address string) (backend.Backend, error) {
	if o.cfg.Node != nil {
		b, err := o.cfg.Node(address)
		if err == nil && typednil.Is(b) {
			err = &ConfigError{Field: "Node", Value: "nil for " + strconv.Quote(address), Bound: "must not be nil"}
		}
		return b, err
	}
	var options redis.Options
	if o.cfg.Redis != nil {
		options = *o.cfg.Redis
	}
	options.Addr = address
	return redisbackend.Open(&options, o.cfg.Backend)
}

// builder builds placements that belong together, of rings, nodes and watchers that are there already and of new ones.
type builder struct {
	*opener
	placements []*placement
	nodes      []*node
	watchers   []*sentinelWatcher
	opened     []*node // those of the nodes that are new
	err        error   // the first; what is built after it is of no use
}

// builder returns one that knows what a table has, if that is not nil.
func (o *opener) builder(t *routingTable) *builder {
	b := &builder{opener: o}
	if t != nil {
		b.placements, b.nodes, b.watchers = t.placements(), t.nodes(), t.watchers()
	}
	return b
}

// finish returns the first error. If there was one, the new nodes are closed.
func (b *builder) finish() error {
	if b.err != nil {
		for _, n := range b.opened {
			_ = n.backend.Close() // nothing was sent yet
		}
	}
	return b.err
}

// placement builds what a topology describes.
func (b *builder) placement(topology Topology) *placement {
	groups := make([]*group, len(topology.Groups))
	for i := range topology.Groups {
		groups[i] = b.group(&topology.Groups[i])
	}
	p := newPlacement(topology, b.ring(groups, topology.Seed), groups)
	b.placements = append(b.placements, p)
	return p
}

// ring finds or makes the ring of groups. It takes a megabyte, and many changes of a topology are of addresses, or undo one.
func (b *builder) ring(groups []*group, seed uint64) *ring.Ring {
	all := members(groups)
	for _, p := range b.placements {
		if p.topology.Seed == seed && slices.Equal(members(p.groups), all) {
			return p.ring
		}
	}
	r, err := ring.New(all, ring.Config{Seed: seed})
	b.fail(err)
	return r
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *builder) group(g *Group) *group { return g.kind().build(b, g) }

func (b *builder) replicas(group string, addresses []string) []*node {
	all := make([]*node, len(addresses))
	for i, address := range addresses {
		all[i] = b.node(group, address, RoleReplica)
	}
	return all
}

// node finds or makes the node of a group at an address. An existing one gets its new role when the table is put in force.
func (b *builder) node(group, address string, role Role) *node {
	return b.findNode(identity{group: group, name: address}, role, func() (backend.Backend, error) { return b.open(address) })
}

func (b *builder) findNode(id identity, role Role, open func() (backend.Backend, error)) *node {
	for _, n := range b.nodes {
		if n.identity == id {
			return n
		}
	}
	if b.err != nil {
		return nil
	}
	opened, err := open()
	if err != nil {
		b.fail(err)
		return nil
	}
	n := newNode(id, role, opened, b.cfg, b.events)
	b.nodes, b.opened = append(b.nodes, n), append(b.opened, n)
	return n
}
