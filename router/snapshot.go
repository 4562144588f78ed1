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
type snapshot struct {
	topology  Topology // of a router made by New only its Seed is set
	digest    string
	ring      *ring.Ring
	groups    []*group // in the order given
	byName    map[string]*group
	from      []former // where keys may have counts that were not handed over, the latest first
	elsewhere []former // those of them that differ in who owns a key; of equal ones, the latest
	refused   error    // why no call may go by it, if so
}

// former is a snapshot that was in force.
type former struct {
	*snapshot
	left  time.Time // when it was no longer in force
	stray bool      // others had another one of its epoch: some keys' counts are there, but nobody is told of it
}

func newSnapshot(topology Topology, r *ring.Ring, groups []*group, from []former) *snapshot {
	byName := make(map[string]*group, len(groups))
	for _, g := range groups {
		byName[g.name] = g
	}
	s := &snapshot{
		topology: topology, digest: topology.Digest(), ring: r, groups: groups, byName: byName,
	}
	s.succeed(from)
	return s
}

// succeed sets the former topologies, the latest first.
func (s *snapshot) succeed(from []former) {
	s.from, s.elsewhere = from, nil
	for _, f := range from {
		same := func(later former) bool { return later.ring == f.ring }
		if f.ring != s.ring && !slices.ContainsFunc(s.elsewhere, same) {
			s.elsewhere = append(s.elsewhere, f)
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

func (s *snapshot) owner(key string) *group { return s.byName[s.ring.Owner(key)] }

// version is that of the moves to where this snapshot has the keys.
func (s *snapshot) version() int64 { return int64(s.topology.Epoch) }

// remembers reports whether the topology of an epoch is among the former ones.
func (s *snapshot) remembers(version int64) bool {
	return slices.ContainsFunc(s.from, func(f former) bool { return f.version() == version && !f.stray })
}

// nodes returns all nodes, group by group, primaries first; and then those that only former snapshots have.
func (s *snapshot) nodes() []*node {
	all := nodesOf(s.groups)
	for _, f := range s.from {
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
func (s *snapshot) cast() {
	roles := make(map[*node]Role)
	for _, snapshot := range append([]former{{snapshot: s}}, s.from...) {
		for _, g := range snapshot.groups {
			for i, n := range append([]*node{g.primary}, g.replicas...) {
				role := RoleReplica
				if i == 0 {
					role = RolePrimary
				}
				if _, cast := roles[n]; !cast {
					roles[n] = role
					n.play(role)
				}
			}
		}
	}
}

// succeedPrimaries notes which groups have another primary than they had before.
func (s *snapshot) succeedPrimaries(before *snapshot) {
	if before == nil {
		return
	}
	now := time.Now()
	for _, g := range s.all() {
		was := before.byName[g.name]
		if was != nil && !was.pending && was.primary != g.primary && !g.primary.many {
			g.primary.succeeded.Store(&now)
		}
	}
}

// followers returns all who follow the primary of a group, once each.
func (s *snapshot) followers() (all []*follower) {
	for _, snapshot := range append([]former{{snapshot: s}}, s.from...) {
		for _, g := range snapshot.groups {
			if g.follower != nil && !slices.Contains(all, g.follower) {
				all = append(all, g.follower)
			}
		}
	}
	return all
}

// relocated is the snapshot with other groups in place of some, with the same names and weights; the former ones likewise.
// Moved returns nil for a group that stays.
func (s *snapshot) relocated(moved func(*group) *group) *snapshot {
	next := *s
	next.groups, next.byName = slices.Clone(s.groups), maps.Clone(s.byName)
	for i, g := range next.groups {
		if now := moved(g); now != nil {
			next.groups[i], next.byName[g.name] = now, now
		}
	}
	from := slices.Clone(s.from)
	for i := range from {
		from[i].snapshot = from[i].relocated(moved)
	}
	next.succeed(from)
	return &next
}

// origins returns the groups that a key may come from, as far as windows that began there can be alive: their snapshot was
// left less than hold ago. A group is known by its name, whatever its addresses.
func (s *snapshot) origins(key string, hold time.Duration) (all []*group) {
	owner := s.ring.Owner(key)
	for _, f := range s.elsewhere {
		if time.Since(f.left) >= hold {
			break // those behind it were left earlier
		}
		if name := f.ring.Owner(key); name != owner {
			all = s.with(all, f.byName[name])
		}
	}
	return all
}

// others returns all groups known but the key's owner.
func (s *snapshot) others(key string) []*group {
	owner := s.ring.Owner(key)
	return slices.DeleteFunc(s.all(), func(g *group) bool { return g.name == owner })
}

// all returns all groups known, those of former snapshots behind the present ones.
func (s *snapshot) all() []*group {
	all := slices.Clone(s.groups)
	for _, f := range s.from {
		for _, g := range f.groups {
			all = s.with(all, g)
		}
	}
	return all
}

// with appends a group, as it is now, unless it is there.
func (s *snapshot) with(all []*group, g *group) []*group {
	if now := s.byName[g.name]; now != nil {
		g = now
	}
	if slices.ContainsFunc(all, func(have *group) bool { return have.name == g.name }) {
		return all
	}
	return append(all, g)
}
