package router

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// groupKind is one way to name the servers of a group. A new kind is a row of groupKinds, and the fields of [Group] that it uses,
// which Topology.clone copies and schemas/topology.schema.json describes.
type groupKind struct {
	name string // the field without which there is no group of this kind
	also string // the field that goes with it, or ""
	used func(*Group) bool

	// complete refuses a group that lacks a part of what its kind needs.
	complete func(v *validator, where string, g *Group)

	// check checks each address.
	check func(v *validator, where string, g *Group)

	// counting returns the addresses of which one leads to the counts; others returns the rest. The role says what they are there.
	counting, others func(*Group) (role string, addresses []string)

	build func(*builder, *Group) *group
	text  func(*Group) string

	slots bool // whether it is a Redis Cluster, which has one database
}

var groupKinds = []groupKind{
	{
		name: "primary", also: "replicas",
		used: func(g *Group) bool { return g.Primary != "" || len(g.Replicas) > 0 },
		complete: func(v *validator, where string, g *Group) {
			if g.Primary == "" {
				v.refuse(where+".primary", `""`, "must be host:port where there are replicas")
			}
		},
		check: func(v *validator, where string, g *Group) {
			if g.Primary != "" {
				v.node(where+".primary", g.Primary)
			}
			v.nodes(where+".replicas", g.Replicas)
		},
		counting: func(g *Group) (string, []string) {
			if g.Primary == "" {
				return "", nil
			}
			return "a node", []string{g.Primary}
		},
		others: func(g *Group) (string, []string) { return "a node", g.Replicas },
		build: func(b *builder, g *Group) *group {
			return newGroup(g.Name, g.Weight, b.node(g.Name, g.Primary, RolePrimary), b.replicas(g.Name, g.Replicas), b.cfg)
		},
		text: func(g *Group) string {
			text := "primary " + g.Primary
			if len(g.Replicas) > 0 {
				text += ", replicas " + strings.Join(g.Replicas, " ")
			}
			return text
		},
	},
	{
		name: "sentinels", also: "master",
		used: func(g *Group) bool { return len(g.Sentinels) > 0 || g.Master != "" },
		complete: func(v *validator, where string, g *Group) {
			switch {
			case len(g.Sentinels) == 0:
				v.refuse(where+".sentinels", "none", "must have at least one where there is a master")
			case !validName.MatchString(g.Master):
				v.refuse(where+".master", strconv.Quote(g.Master), "must match [A-Za-z0-9_.-]{1,64} where there are sentinels")
			}
		},
		check: func(v *validator, where string, g *Group) {
			v.later = append(v.later, func() { v.sentinels(where, g) }) // after all nodes: a sentinel may serve several groups, but it is no node
		},
		counting: func(g *Group) (string, []string) {
			return "a sentinel of master " + strconv.Quote(g.Master), g.Sentinels
		},
		build: func(b *builder, g *Group) *group { return b.sentinelGroup(b.watcher(g), g.Weight) },
		text: func(g *Group) string {
			return fmt.Sprintf("master %s of sentinels %s", g.Master, strings.Join(g.Sentinels, " "))
		},
	},
	{
		name:     "cluster",
		used:     func(g *Group) bool { return len(g.Cluster) > 0 },
		check:    func(v *validator, where string, g *Group) { v.nodes(where+".cluster", g.Cluster) },
		counting: func(g *Group) (string, []string) { return "a node of a cluster", g.Cluster },
		build:    (*builder).cluster,
		text:     func(g *Group) string { return "cluster " + strings.Join(g.Cluster, " ") },
		slots:    true,
	},
}

// kinds returns the kinds whose fields a group has; of a valid group exactly one.
func (g *Group) kinds() (all []*groupKind) {
	for i := range groupKinds {
		if k := &groupKinds[i]; k.used(g) {
			all = append(all, k)
		}
	}
	return all
}

// hasSlots reports whether a Redis Cluster keeps the group's keys.
func (g *Group) hasSlots() bool {
	return slices.ContainsFunc(g.kinds(), func(k *groupKind) bool { return k.slots })
}

// kind returns the kind of a valid group.
func (g *Group) kind() *groupKind { return g.kinds()[0] }

// String says where the group's servers are: "primary 10.0.0.1:6379, replicas 10.0.0.2:6379", "master main of sentinels
// 10.0.0.7:26379", "cluster 10.0.2.1:6379". Groups with the same servers have the same text.
func (g Group) String() string {
	var texts []string
	for _, k := range g.kinds() {
		texts = append(texts, k.text(&g))
	}
	if len(texts) == 0 {
		return "no servers"
	}
	return strings.Join(texts, " and ")
}

// endpoint is an address in a topology and its role there. The role matters: a sentinel leads to other servers under another
// master's name, a cluster leads to all its servers, and a sentinel that is used as a node gets the password of one.
type endpoint struct{ role, address string }

func endpoints(role string, addresses []string) []endpoint {
	all := make([]endpoint, len(addresses))
	for i, address := range addresses {
		all[i] = endpoint{role, canonical(address)}
	}
	return all
}

// endpoints returns all addresses of a group.
func (g *Group) endpoints() (all []endpoint) {
	for _, k := range g.kinds() {
		all = append(all, endpoints(k.counting(g))...)
		if k.others != nil {
			all = append(all, endpoints(k.others(g))...)
		}
	}
	return all
}

// Continues reports whether the group has the counts of another description of it, as far as the addresses say: its primary was
// one of its nodes, or they have a sentinel of one master, or a node of one cluster, in common.
func (g Group) Continues(before Group) bool {
	known := before.endpoints()
	for _, k := range g.kinds() {
		if slices.ContainsFunc(endpoints(k.counting(&g)), func(e endpoint) bool { return slices.Contains(known, e) }) {
			return true
		}
	}
	return false
}

// endpoints returns those of a topology and of the ones before it.
func (t *Topology) endpoints() (all []endpoint) {
	for p := t; p != nil; p = p.Previous {
		for i := range p.Groups {
			all = append(all, p.Groups[i].endpoints()...)
		}
	}
	return all
}
