package router

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

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

	o := opener{cfg: cfg, events: newEvents(cfg.OnEvent)}
	groups := make([]*group, len(topology.Groups))
	for i := range topology.Groups {
		g := &topology.Groups[i]
		primary := o.open(g.Name, g.Primary, RolePrimary)
		replicas := make([]*node, len(g.Replicas))
		for j, address := range g.Replicas {
			replicas[j] = o.open(g.Name, address, RoleReplica)
		}
		groups[i] = newGroup(g.Name, g.Weight, primary, replicas, cfg)
	}
	if o.err != nil {
		o.close()
		return nil, o.err
	}
	r, err := start(groups, topology.Seed, cfg, o.events)
	if err != nil {
		o.close()
	}
	return r, err
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

// opener opens Redis nodes until one fails.
type opener struct {
	cfg    Config
	events *events
	opened []backend.Backend
	err    error // the first one: what is wrong is in the configuration, which all nodes share
}

func (o *opener) open(group, address string, role Role) *node {
	if o.err != nil {
		return nil
	}
	var options redis.Options
	if o.cfg.Redis != nil {
		options = *o.cfg.Redis
	}
	options.Addr = address
	b, err := backend.OpenRedis(&options, o.cfg.Backend)
	if err != nil {
		o.err = err
		return nil
	}
	o.opened = append(o.opened, b)
	return newNode(group, address, role, b, o.cfg, o.events)
}

func (o *opener) close() {
	for _, b := range o.opened {
		_ = b.Close() // nothing was sent yet
	}
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
	return start(built, cfg.Seed, cfg, events)
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
