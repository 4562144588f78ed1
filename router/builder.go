package router

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/ring"
)

// Open makes a router of Redis nodes. It does no network I/O; Ping does. Its error joins all that is wrong with the
// topology and the configuration, as [*ConfigError] values for the most part.
//
// Of a group with sentinels the primary is not known yet: they are asked at once, in the background. Calls that come before
// the first answer wait for it, as long as they may take anyway, and fail as [backend.Unavailable] after that.
func Open(topology Topology, cfg Config) (*Router, error) {
	cfg = cfg.withDefaults()
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
	m := o.builder(nil)
	s := m.table(topology, nil)
	s.addPrevious(m, topology.Previous, time.Now()) // left just now, for all that is known here
	if err := m.finish(); err != nil {
		r.shutdown()
		return nil, err
	}
	r.start(s)
	r.running.Go(r.syncLoop)
	return r, nil
}

// suits refuses what can't be had with this topology.
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
		if slices.ContainsFunc(p.Groups, func(g Group) bool { return len(g.Cluster) > 0 }) {
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
	return backend.OpenRedis(&options, o.cfg.Backend)
}

// maker makes snapshots that belong together, of rings, nodes and followers that are there already and of
// new ones.
type builder struct {
	*opener
	tables   []*routingTable
	nodes    []*node
	watchers []*sentinelWatcher
	opened   []*node // those of them that are new
	err      error   // the first; what is made after it is of no use
}

// maker returns one that knows what a snapshot has, if there is one.
func (o *opener) builder(s *routingTable) *builder {
	m := &builder{opener: o}
	if s != nil {
		m.tables, m.nodes, m.watchers = []*routingTable{s}, s.nodes(), s.watchers()
		for _, f := range s.history {
			m.tables = append(m.tables, f.routingTable)
		}
	}
	return m
}

// end says whether all could be made. If not, what was made is closed.
func (m *builder) finish() error {
	if m.err != nil {
		for _, n := range m.opened {
			_ = n.backend.Close() // nothing was sent yet
		}
	}
	return m.err
}

// snapshot makes what a topology describes.
func (m *builder) table(topology Topology, from []previousTable) *routingTable {
	groups := make([]*group, len(topology.Groups))
	for i := range topology.Groups {
		groups[i] = m.group(&topology.Groups[i])
	}
	s := newTable(topology, m.ring(groups, topology.Seed), groups, from)
	m.tables = append(m.tables, s)
	return s
}

// ring finds or makes the ring of groups. It takes a megabyte, and many changes of a topology are of addresses, or undo one.
func (m *builder) ring(groups []*group, seed uint64) *ring.Ring {
	all := members(groups)
	for _, s := range m.tables {
		if s.topology.Seed == seed && slices.Equal(members(s.groups), all) {
			return s.ring
		}
	}
	r, err := ring.New(all, ring.Config{Seed: seed})
	m.fail(err)
	return r
}

func (m *builder) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *builder) group(g *Group) *group {
	switch {
	case len(g.Cluster) > 0:
		return m.cluster(g)
	case len(g.Sentinels) > 0:
		return m.sentinelGroup(g.Name, g.Weight, m.watcher(g))
	}
	return newGroup(g.Name, g.Weight, m.node(g.Name, g.Primary, RolePrimary), m.replicas(g.Name, g.Replicas), m.cfg)
}

func (m *builder) replicas(group string, addresses []string) []*node {
	all := make([]*node, len(addresses))
	for i, address := range addresses {
		all[i] = m.node(group, address, RoleReplica)
	}
	return all
}

// node finds or makes the node of a group at an address. It gets its role when it is put in force.
func (m *builder) node(group, address string, role Role) *node {
	return m.findNode(identity{group: group, name: address}, role, func() (backend.Backend, error) { return m.open(address) })
}

func (m *builder) findNode(id identity, role Role, open func() (backend.Backend, error)) *node {
	for _, n := range m.nodes {
		if n.identity == id {
			return n
		}
	}
	if m.err != nil {
		return nil
	}
	b, err := open()
	if err != nil {
		m.fail(err)
		return nil
	}
	n := newNode(id, role, b, m.cfg, m.events)
	m.nodes, m.opened = append(m.nodes, n), append(m.opened, n)
	return n
}
