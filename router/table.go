package router

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-go/sluice/ring"
)

// snapshot is what a call routes by. It never changes; a call sees one snapshot from its start to its end, unless it is
// told on its way that there is a newer one.
type routingTable struct {
	topology       Topology // of a router made by New only its Seed is set
	digest         string
	ring           *ring.Ring
	groups         []*group // in the order given
	byName         map[string]*group
	history        []previousTable // where keys may have counts that were not handed over, the latest first
	ownedElsewhere []previousTable // those of them that differ in who owns a key; of equal ones, the latest
	stopped        error           // why no call may go by it, if so
}

// former is a snapshot that was in force.
type previousTable struct {
	*routingTable
	left        time.Time // when it was no longer in force
	conflicting bool      // others had another one of its epoch: some keys' counts are there, but nobody is told of it
}

func newTable(topology Topology, r *ring.Ring, groups []*group, from []previousTable) *routingTable {
	byName := make(map[string]*group, len(groups))
	for _, g := range groups {
		byName[g.name] = g
	}
	s := &routingTable{
		topology: topology, digest: topology.Digest(), ring: r, groups: groups, byName: byName,
	}
	s.setHistory(from)
	return s
}

// succeed sets the former topologies, the latest first.
func (s *routingTable) setHistory(from []previousTable) {
	s.history, s.ownedElsewhere = from, nil
	for _, f := range from {
		same := func(later previousTable) bool { return later.ring == f.ring }
		if f.ring != s.ring && !slices.ContainsFunc(s.ownedElsewhere, same) {
			s.ownedElsewhere = append(s.ownedElsewhere, f)
		}
	}
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

func (s *routingTable) owner(key string) *group { return s.byName[s.ring.Owner(key)] }

// version is that of the moves to where this snapshot has the keys.
func (s *routingTable) version() int64 { return int64(s.topology.Epoch) }

// remembers reports whether the topology of an epoch is among the former ones.
func (s *routingTable) remembers(version int64) bool {
	return slices.ContainsFunc(s.history, func(f previousTable) bool { return f.version() == version && !f.conflicting })
}

// nodes returns all nodes, group by group, primaries first; and then those that only former snapshots have.
func (s *routingTable) nodes() []*node {
	all := nodesOf(s.groups)
	for _, f := range s.history {
		for _, n := range nodesOf(f.groups) {
			if !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all
}

func nodesOf(groups []*group) []*node {
	var all []*node
	for _, g := range groups {
		all = append(all, g.primary)
		all = append(all, g.replicas...)
	}
	return all
}

// cast gives each node its role: that in the latest snapshot that has it.
func (s *routingTable) assignRoles() {
	roles := make(map[*node]Role)
	for _, snapshot := range append([]previousTable{{routingTable: s}}, s.history...) {
		for _, g := range snapshot.groups {
			for i, n := range append([]*node{g.primary}, g.replicas...) {
				role := RoleReplica
				if i == 0 {
					role = RolePrimary
				}
				if _, cast := roles[n]; !cast {
					roles[n] = role
					n.setRole(role)
				}
			}
		}
	}
}

// succeedPrimaries notes which groups have another primary than they had before.
func (s *routingTable) notePromotions(before *routingTable) {
	if before == nil {
		return
	}
	now := time.Now()
	for _, g := range s.allGroups() {
		was := before.byName[g.name]
		if was != nil && !was.pending && was.primary != g.primary && !g.primary.many {
			g.primary.promotedAt.Store(&now)
		}
	}
}

// followers returns all who follow the primary of a group, once each.
func (s *routingTable) watchers() (all []*sentinelWatcher) {
	for _, snapshot := range append([]previousTable{{routingTable: s}}, s.history...) {
		for _, g := range snapshot.groups {
			if g.watcher != nil && !slices.Contains(all, g.watcher) {
				all = append(all, g.watcher)
			}
		}
	}
	return all
}

// relocated is the snapshot with other groups in place of some, with the same names and weights; the former ones likewise.
// Moved returns nil for a group that stays.
func (s *routingTable) withGroups(moved func(*group) *group) *routingTable {
	next := *s
	next.groups, next.byName = slices.Clone(s.groups), maps.Clone(s.byName)
	for i, g := range next.groups {
		if now := moved(g); now != nil {
			next.groups[i], next.byName[g.name] = now, now
		}
	}
	from := slices.Clone(s.history)
	for i := range from {
		from[i].routingTable = from[i].withGroups(moved)
	}
	next.setHistory(from)
	return &next
}

// origins returns the groups that a key may come from, as far as windows that began there can be alive: their snapshot was
// left less than hold ago. A group is known by its name, whatever its addresses.
func (s *routingTable) previousOwners(key string, hold time.Duration) (all []*group) {
	owner := s.ring.Owner(key)
	for _, f := range s.ownedElsewhere {
		if time.Since(f.left) >= hold {
			break // those behind it were left earlier
		}
		if name := f.ring.Owner(key); name != owner {
			all = s.appendCurrent(all, f.byName[name])
		}
	}
	return all
}

// others returns all groups known but the key's owner.
func (s *routingTable) otherGroups(key string) []*group {
	owner := s.ring.Owner(key)
	return slices.DeleteFunc(s.allGroups(), func(g *group) bool { return g.name == owner })
}

// all returns all groups known, those of former snapshots behind the present ones.
func (s *routingTable) allGroups() []*group {
	all := slices.Clone(s.groups)
	for _, f := range s.history {
		for _, g := range f.groups {
			all = s.appendCurrent(all, g)
		}
	}
	return all
}

// with appends a group, as it is now, unless it is there.
func (s *routingTable) appendCurrent(all []*group, g *group) []*group {
	if now := s.byName[g.name]; now != nil {
		g = now
	}
	if slices.ContainsFunc(all, func(have *group) bool { return have.name == g.name }) {
		return all
	}
	return append(all, g)
}
