package router

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/ring"
)

// NodeGroup is a group made of any backends.
type NodeGroup struct {
	Name    string // as in [Group]
	Weight  int    // as in [Group]
	Primary backend.Backend

	// Replicas follow the primary: the servers themselves replicate what is taken there. Each must be a [backend.Loader]. A
	// [control.Heartbeater] is read while it says that it is a replica whose link is up and not too old; any other, while its
	// breaker is closed.
	Replicas []backend.Backend
}

// New makes a router of any backends. It owns them from then on: Close closes them. If New fails they stay the caller's, and its
// error joins a [*ConfigError] for each problem.
func New(groups []NodeGroup, cfg Config) (*Router, error) {
	cfg = cfg.withDefaults()
	errs := []error{validateNodes(groups), cfg.validate()}
	refuse := func(field string, set bool, bound string) {
		if set {
			errs = append(errs, &ConfigError{Field: field, Value: "set", Bound: bound})
		}
	}
	rest := cfg.Backend
	rest.Timeout = 0
	refuse("Redis", cfg.Redis != nil, "must be nil: the nodes are made already")
	refuse("Sentinel", cfg.Sentinel != nil, "must be nil: the nodes are made already")
	refuse("Backend", !reflect.ValueOf(rest).IsZero(), "must be zero but for Timeout: the nodes are made already")
	refuse("Node", cfg.Node != nil, "must be nil: the nodes are made already")
	refuse("TopologyKeys", len(cfg.TopologyKeys) > 0, "must be nil: no topology is published")
	refuse("AllowedAddresses", len(cfg.AllowedAddresses) > 0, "must be nil: no topology is published")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	events := newEvents(cfg.OnEvent)
	built := make([]*group, len(groups))
	for i, g := range groups {
		primary := newNode(identity{group: g.Name, name: "primary"}, RolePrimary, g.Primary, cfg, events)
		replicas := make([]*node, len(g.Replicas))
		for j, b := range g.Replicas {
			id := identity{group: g.Name, name: fmt.Sprintf("replica-%d", j+1)}
			replicas[j] = newNode(id, RoleReplica, b, cfg, events)
		}
		built[i] = newGroup(g.Name, g.Weight, primary, replicas, cfg)
		built[i].timeout = cfg.Backend.Timeout // keys don't move here: each call goes to one node, which has its own
	}
	placed, err := ring.New(members(built), ring.Config{Seed: cfg.Seed})
	if err != nil {
		return nil, err
	}
	r := newRouter(cfg, events, nil)
	r.start(&routingTable{placement: newPlacement(Topology{Seed: cfg.Seed}, placed, built)})
	return r, nil
}

func validateNodes(groups []NodeGroup) error {
	var v validator
	holders := make(map[backend.Backend]string)
	node := func(field string, b backend.Backend, replica bool) {
		if typednil.Is(b) {
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
