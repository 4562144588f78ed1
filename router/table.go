package router

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-go/sluice/ring"
)

// placement is the groups of one topology, and which of them owns a key. It never changes.
type placement struct {
	topology Topology // of a router made by New only its Seed is set
	digest   string
	ring     *ring.Ring
	groups   []*group // in the order given
	byName   map[string]*group
}

func newPlacement(topology Topology, r *ring.Ring, groups []*group) *placement {
	byName := make(map[string]*group, len(groups))
	for _, g := range groups {
		byName[g.name] = g
	}
	return &placement{topology: topology, digest: topology.Digest(), ring: r, groups: groups, byName: byName}
}

// members is what the ring is made of.
func members(groups []*group) []ring.Member {
	all := make([]ring.Member, len(groups))
	for i, g := range groups {
		all[i] = ring.Member{Name: g.name, Weight: max(g.weight, 1)}
	}
	slices.SortFunc(all, func(a, b ring.Member) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (p *placement) owner(key string) *group { return p.byName[p.ring.Owner(key)] }

// version is that of the moves to where this placement has the keys.
func (p *placement) version() int64 { return int64(p.topology.Epoch) }

// withGroups returns the placement with other groups of the same names and weights in place of some. Replace returns nil for
// a group that stays.
func (p *placement) withGroups(replace func(*group) *group) *placement {
	next := *p
	next.groups, next.byName = slices.Clone(p.groups), maps.Clone(p.byName)
	for i, g := range next.groups {
		if now := replace(g); now != nil {
			next.groups[i], next.byName[g.name] = now, now
		}
	}
	return &next
}

// routingTable is what calls route by. It never changes; a call uses one table from start to end, unless it is redirected and
// finds that a newer one is in force.
type routingTable struct {
	*placement
	history history
	stopped error // why no call may use it, or nil
}

// placements returns the placement in force and the previous ones, the latest first.
func (t *routingTable) placements() []*placement {
	all := []*placement{t.placement}
	for _, p := range t.history.all {
		all = append(all, p.placement)
	}
	return all
}

// withGroups is [placement.withGroups] for the placement in force and all previous ones.
func (t *routingTable) withGroups(replace func(*group) *group) *routingTable {
	next := &routingTable{placement: t.placement.withGroups(replace), stopped: t.stopped}
	all := slices.Clone(t.history.all)
	for i := range all {
		all[i].placement = all[i].placement.withGroups(replace)
	}
	next.history = newHistory(next.ring, all)
	return next
}

// allGroups returns all groups, each once as it is now: those in force, then those that only previous placements have.
func (t *routingTable) allGroups() (all []*group) {
	for _, p := range t.placements() {
		for _, g := range p.groups {
			all = t.appendCurrent(all, g.name, p)
		}
	}
	return all
}

// appendCurrent appends the group of a name, as it is now or else as a previous placement has it, unless all contains it. A group
// keeps its name whatever its addresses.
func (t *routingTable) appendCurrent(all []*group, name string, previous *placement) []*group {
	if slices.ContainsFunc(all, func(g *group) bool { return g.name == name }) {
		return all
	}
	return append(all, cmp.Or(t.byName[name], previous.byName[name]))
}

// previousOwners returns the groups, other than the owner, that may hold counts of a key in windows which were alive less than
// hold ago.
func (t *routingTable) previousOwners(key, owner string, hold time.Duration) (all []*group) {
	for _, p := range t.history.moved {
		if time.Since(p.left) >= hold {
			break // those behind it were left earlier
		}
		if name := p.ring.Owner(key); name != owner {
			all = t.appendCurrent(all, name, p.placement)
		}
	}
	return all
}

// others returns all groups but one.
func (t *routingTable) others(name string) []*group {
	return slices.DeleteFunc(t.allGroups(), func(g *group) bool { return g.name == name })
}

// nodes returns all nodes: those in force group by group, primaries first, then those that only previous placements have.
func (t *routingTable) nodes() (all []*node) {
	for _, p := range t.placements() {
		for _, n := range nodesOf(p.groups) {
			if !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all
}

func nodesOf(groups []*group) (all []*node) {
	for _, g := range groups {
		all = append(append(all, g.primary), g.replicas...)
	}
	return all
}

// watchers returns the sentinel watchers of all groups.
func (t *routingTable) watchers() (all []*sentinelWatcher) {
	for _, p := range t.placements() {
		for _, g := range p.groups {
			if g.watcher != nil && !slices.Contains(all, g.watcher) {
				all = append(all, g.watcher)
			}
		}
	}
	return all
}

// assignRoles gives each node the role that it has in the latest placement which names it.
func (t *routingTable) assignRoles() {
	assigned := make(map[*node]bool)
	assign := func(n *node, role Role) {
		if !assigned[n] {
			assigned[n] = true
			n.setRole(role)
		}
	}
	for _, p := range t.placements() {
		for _, g := range p.groups {
			assign(g.primary, RolePrimary)
			for _, n := range g.replicas {
				assign(n, RoleReplica)
			}
		}
	}
}

// notePromotions notes which groups have another primary than they had: under the table before or, where that doesn't have the
// group, under a previous topology that this process hears of now. Two Redis Clusters look the same as one with two lists of
// its nodes.
func (t *routingTable) notePromotions(before *routingTable) {
	now := time.Now()
	for _, g := range t.allGroups() {
		was := t.primaryBefore(before, g)
		switch {
		case g.pending:
			g.watcher.replaced = was
		case was == nil || was == g.primary:
		case was.identity == g.primary.identity || was.many && g.primary.many: // the same server through another client
			g.primary.promotedAt.Store(was.promotedAt.Load())
		default:
			g.primary.promotedAt.Store(&now)
		}
	}
}

// primaryBefore returns what was a group's primary before this table; nil if there was none, or none is known.
func (t *routingTable) primaryBefore(before *routingTable, g *group) *node {
	if before != nil {
		for _, p := range before.placements() {
			if was := p.byName[g.name]; was != nil {
				return was.lastPrimary()
			}
		}
	}
	for _, p := range t.history.all {
		if was := p.byName[g.name]; was != nil && was != g && !was.pending {
			return was.primary
		}
	}
	return nil
}
