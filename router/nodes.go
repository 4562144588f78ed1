package router

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
)

// Nodes is a group made of any backends.
type Nodes struct {
	Name    string // as in [Group]
	Weight  int    // as in [Group]
	Primary backend.Backend

	// Replicas follow the primary: what is taken there shows here after a while, by the servers' own doing. Each must
	// be a [backend.Loader]. One that is a [backend.Heartbeater] is read while it says that it is a replica whose link
	// is up and not too old; one that isn't, while its breaker is closed.
	Replicas []backend.Backend
}

// Open makes a router of Redis nodes. It does no network I/O; Ping does. Its error joins all that is wrong with the
// topology and the configuration, as [*ConfigError] values for the most part.
func Open(topology Topology, cfg Config) (*Router, error) {
	cfg = cfg.withDefaults()
	errs := []error{topology.Validate(), topology.supported(), cfg.validate()}
	if cfg.Seed != 0 {
		errs = append(errs, &ConfigError{
			Field: "Seed", Value: strconv.FormatUint(cfg.Seed, 10), Bound: "must be 0: the topology has the seed",
		})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	o := &opener{cfg: cfg, events: newEvents(cfg.OnEvent)}
	var from []former
	for previous := topology.Previous; previous != nil; previous = previous.Previous {
		s, err := o.snapshot(*previous, nil, o.nodes)
		if err != nil {
			return nil, err
		}
		from = append(from, former{s, time.Now()}) // just now for all that is known here
	}
	s, err := o.snapshot(topology, from, o.nodes)
	if err != nil {
		return nil, err
	}
	r := newRouter(cfg, o.events, o)
	r.enforce(s)
	r.running.Go(r.confer)
	return r, nil
}

// supported refuses the kinds of groups that can be written down but not opened.
func (t *Topology) supported() error {
	var errs []error
	for i := range t.Groups {
		refuse := func(field string, value []string) {
			if len(value) > 0 {
				errs = append(errs, &ConfigError{
					Field: fmt.Sprintf("groups[%d].%s", i, field), Value: strings.Join(value, ","),
					Bound: "must be a group with a primary", Err: ErrNotSupported,
				})
			}
		}
		refuse("sentinels", t.Groups[i].Sentinels)
		refuse("cluster", t.Groups[i].Cluster)
	}
	return errors.Join(errs...)
}

// opener makes the nodes of topologies.
type opener struct {
	cfg    Config
	events *events
	nodes  []*node // made for the snapshot that is being made
}

// snapshot makes what a topology describes, with the nodes that are there already. If it fails, what it has made is closed.
func (o *opener) snapshot(topology Topology, from []former, have []*node) (*snapshot, error) {
	made := len(o.nodes)
	var failed error
	find := func(group, address string, role Role) *node {
		for _, n := range have {
			if n.group == group && n.name == address && n.role == role {
				return n
			}
		}
		if failed != nil {
			return nil
		}
		var b backend.Backend
		if b, failed = o.open(address); failed != nil {
			return nil
		}
		n := newNode(group, address, role, b, o.cfg, o.events)
		o.nodes = append(o.nodes, n)
		return n
	}
	groups := make([]*group, len(topology.Groups))
	for i := range topology.Groups {
		g := &topology.Groups[i]
		replicas := make([]*node, len(g.Replicas))
		for j, address := range g.Replicas {
			replicas[j] = find(g.Name, address, RoleReplica)
		}
		groups[i] = newGroup(g.Name, g.Weight, find(g.Name, g.Primary, RolePrimary), replicas, o.cfg)
	}
	s, err := newSnapshot(topology, groups, from)
	if err = errors.Join(failed, err); err != nil {
		for _, n := range o.nodes[made:] {
			_ = n.backend.Close() // nothing was sent yet
		}
		o.nodes = o.nodes[:made]
		return nil, err
	}
	return s, nil
}

func (o *opener) open(address string) (backend.Backend, error) {
	if o.cfg.Node != nil {
		return o.cfg.Node(address)
	}
	var options redis.Options
	if o.cfg.Redis != nil {
		options = *o.cfg.Redis
	}
	options.Addr = address
	return backend.OpenRedis(&options, o.cfg.Backend)
}

// New makes a router of any backends. It owns them from then on: Close closes them. They stay the caller's if New
// fails; its error joins a [*ConfigError] for everything that is wrong.
func New(groups []Nodes, cfg Config) (*Router, error) {
	cfg = cfg.withDefaults()
	errs := []error{validateNodes(groups), cfg.validate()}
	if cfg.Redis != nil {
		errs = append(errs, &ConfigError{Field: "Redis", Value: "set", Bound: "must be nil: the nodes are made already"})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	events := newEvents(cfg.OnEvent)
	built := make([]*group, len(groups))
	for i, g := range groups {
		primary := newNode(g.Name, "primary", RolePrimary, g.Primary, cfg, events)
		replicas := make([]*node, len(g.Replicas))
		for j, b := range g.Replicas {
			replicas[j] = newNode(g.Name, fmt.Sprintf("replica-%d", j+1), RoleReplica, b, cfg, events)
		}
		built[i] = newGroup(g.Name, g.Weight, primary, replicas, cfg)
	}
	s, err := newSnapshot(Topology{Seed: cfg.Seed}, built, nil)
	if err != nil {
		return nil, err
	}
	r := newRouter(cfg, events, nil)
	r.enforce(s)
	return r, nil
}

func validateNodes(groups []Nodes) error {
	var v validator
	holders := make(map[backend.Backend]string)
	node := func(field string, b backend.Backend, replica bool) {
		if isNil(b) {
			v.refuse(field, "nil", "must not be nil")
			return
		}
		kind := fmt.Sprintf("%T", b)
		if _, ok := b.(backend.Loader); replica && !ok {
			v.refuse(field, kind, "must be a backend.Loader: a replica is there to be read")
		}
		if !reflect.TypeOf(b).Comparable() {
			return
		}
		if holder, taken := holders[b]; taken {
			v.refuse(field, kind, "must be unique: %s is the same backend", holder)
			return
		}
		holders[b] = field
	}
	if len(groups) == 0 {
		v.refuse("groups", "none", "must have at least one")
	}
	for i, g := range groups {
		where := fmt.Sprintf("groups[%d]", i)
		v.group(where, g.Name, g.Weight)
		node(where+".primary", g.Primary, false)
		for j, b := range g.Replicas {
			node(fmt.Sprintf("%s.replicas[%d]", where, j), b, true)
		}
	}
	return v.err()
}

// isNil also finds a nil pointer in an interface, the usual result of an ignored error.
func isNil(b backend.Backend) bool {
	if b == nil {
		return true
	}
	v := reflect.ValueOf(b)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
