// Package ring says which member owns a key: an immutable consistent-hash ring, the same in every process that
// builds it from the same set of members, in whatever order.
//
//	r, err := ring.New([]ring.Member{{Name: "eu-1"}, {Name: "eu-2"}, {Name: "eu-3", Weight: 2}}, ring.Config{})
//	if err != nil {
//		return err
//	}
//	group := r.Owner("user:42")
//
// Adding, removing or reweighting a member moves only the keys that this member gains or loses: no key ever moves
// between two others. A hash per point decides, so shares come close to the weights without being equal to them;
// [Ring.Shares] tells what they are.
//
// A Ring doesn't know who is alive and doesn't look at traffic: a dead member still owns its keys, and one hot key
// is one member's load. The hash is public, so a client that chooses keys can choose their owner.
//
// A Ring never changes, so any number of goroutines may use it. To change members, build another and swap.
//
// # How it works
//
// Every member puts points on a circle of 64-bit hashes (Karger and others: Consistent Hashing and Random Trees,
// 1997). A key's hash, mixed with the seed, picks one of 524288 equal slots, much as Redis Cluster picks one of 16384,
// and the slot belongs to the first point at or after its start. Slots never depend on the members, so that is plain
// consistent hashing of slots, and a lookup is a hash and one load from a table of 512 KB, or of 1 MB above 256 members.
package ring

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/sluice-go/sluice/internal/keyhash"
)

// defaultPoints keeps the busiest of 10 equal members within 1.05 times the mean, whatever seed is chosen: the
// spread of a share is 1/sqrt(points), so the bound is more than four standard deviations away. Of 1000 seeds
// (go test -run '^$' -bench Points -benchtime 1000x ./ring):
//
//	points   seeds past 1.05   worst max/mean
//	  2048                81            1.092
//	  4096                 3            1.056
//	  8192                 0            1.038
//
// All points are hashed to build a ring, and none are kept (go test -run '^$' -bench New ./ring).
const defaultPoints = 8192

const (
	maxMembers     = 1 << 12 // 128 slots each
	maxWeight      = 1 << 10
	maxPoints      = 1 << 16
	maxTotalPoints = 1 << 24
)

// The other way to look up is to walk the points themselves, through an index with an entry for every one or two of
// them. Two dependent cache misses and an unpredictable branch make it take twice the time of the table of
// slots at 10 members and three times at 100 (30 and 48 ns against 13 and 14: go test -run '^$' -bench Owner ./ring).
// The number of slots: with 2^18, 100 members are spread worse (max/mean 1.042 on average over 60 seeds, against 1.033
// with 2^19 and 1.028 with 2^20); with 2^20 the table alone fills a core's second-level cache.
//
// Rendezvous hashing, once for each slot, needs no points and is better balanced. It was rejected for its build time,
// slots x total weight, where points cost their own number.
const (
	slotBits  = 19
	slots     = 1 << slotBits
	slotShift = 64 - slotBits
)

// ConfigError is one thing wrong with the arguments of [New], which reports all of them at once.
type ConfigError struct {
	Field  string // what was wrong: "Points", "len(members)", "members[3].Weight"
	Value  any    // what it was
	Reason string // why it was rejected, with the bound if there is one
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("ring: %s is %#v: %s", e.Field, e.Value, e.Reason)
}

// Member is an owner of keys.
type Member struct {
	// Name is the member's identity, any bytes but none. It alone places the member on the ring, so it should name a
	// role that outlives a machine ("eu-1"), never an address.
	Name string

	// Weight is the member's share relative to the others. 0 means 1, the most is 1024. The time to build the ring grows
	// with it: {1, 2} is better than {100, 200}.
	Weight int
}

// Config tunes a ring. All processes that share keys must use the same.
type Config struct {
	// Seed changes the place of every key and every point. Rings with different seeds are independent: the keys of
	// one member of the first spread over all members of the second. So a ring inside a member of another ring needs
	// a seed of its own.
	Seed uint64

	// Points is the number of points on the ring per unit of weight. More of them make shares more even, and a ring slower to
	// build. 0 means 8192, the most is 65536, and all members together may have 2^24.
	Points int
}

// Ring maps keys to members. The zero Ring has no members: every key's owner is "".
type Ring struct {
	seed    uint64
	members []Member // sorted by name

	// By slot, an index into members. Of up to 256 members few holds them, in half the memory.
	few  []uint8
	many []uint16
}

// rankMask cuts out the bits of a point that hold its member's index. The upper 48 bits of a point are its hash and the lower
// 16 its member's index, so that of two equal hashes the smaller name comes first, in every process.
const rankMask = 1<<16 - 1

// New returns the ring of members, in any order. Its error joins a [*ConfigError] for everything that is wrong.
func New(members []Member, cfg Config) (*Ring, error) {
	if err := validate(members, cfg); err != nil {
		return nil, err
	}
	members = slices.Clone(members)
	for i := range members {
		members[i].Weight = cmp.Or(members[i].Weight, 1)
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })

	r := &Ring{seed: cfg.Seed, members: members}
	r.place(cmp.Or(cfg.Points, defaultPoints))
	return r, nil
}

func validate(members []Member, cfg Config) error {
	var errs []error
	invalid := func(field string, value any, format string, args ...any) {
		errs = append(errs, &ConfigError{Field: field, Value: value, Reason: fmt.Sprintf(format, args...)})
	}

	points := int64(cmp.Or(cfg.Points, defaultPoints))
	if points < 0 || points > maxPoints {
		invalid("Points", cfg.Points, "want 1 to %d, or 0 for %d", maxPoints, defaultPoints)
		points = 0
	}
	if n := len(members); n == 0 || n > maxMembers {
		invalid("len(members)", n, "want 1 to %d", maxMembers)
	}
	var total int64
	first := make(map[string]int, len(members))
	for i, m := range members {
		if m.Weight < 0 || m.Weight > maxWeight {
			invalid(fmt.Sprintf("members[%d].Weight", i), m.Weight, "want 1 to %d, or 0 for 1", maxWeight)
		} else {
			total += points * int64(cmp.Or(m.Weight, 1))
		}
		if m.Name == "" {
			invalid(fmt.Sprintf("members[%d].Name", i), m.Name, "want a name")
			continue
		}
		if j, taken := first[m.Name]; taken {
			invalid(fmt.Sprintf("members[%d].Name", i), m.Name, "members[%d] has it already", j)
			continue
		}
		first[m.Name] = i
	}
	if total > maxTotalPoints {
		invalid("Points x total weight", total, "want at most %d", maxTotalPoints)
	}
	return errors.Join(errs...)
}

// place fills owners. It needs only the first point of each slot, so none are sorted.
func (r *Ring) place(perWeight int) {
	const none = ^uint64(0) // is no point: there are not so many members
	first := slices.Repeat([]uint64{none}, slots)
	for p := range r.hashed(perWeight) {
		first[p>>slotShift] = min(first[p>>slotShift], p)
	}
	if len(r.members) <= 1<<8 {
		r.few = make([]uint8, slots)
	} else {
		r.many = make([]uint16, slots)
	}
	next := slices.Min(first) // past the last point the circle begins again
	for s := slots - 1; s >= 0; s-- {
		if first[s] != none {
			next = first[s]
		}
		if rank := next & rankMask; r.few != nil {
			r.few[s] = uint8(rank)
		} else {
			r.many[s] = uint16(rank)
		}
	}
}

// hashed yields the points of all members, unsorted.
func (r *Ring) hashed(perWeight int) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for rank, m := range r.members {
			member := keyhash.Mix(keyhash.Sum(m.Name), r.seed)
			for i := range m.Weight * perWeight {
				if !yield(keyhash.Mix(member, uint64(i))&^rankMask | uint64(rank)) {
					return
				}
			}
		}
	}
}

// Owner returns the name of the member that owns key. It doesn't allocate.
func (r *Ring) Owner(key string) string {
	return r.OwnerHash(keyhash.Sum(key))
}

// OwnerHash is [Ring.Owner] for a caller who has hashed the key already. h is the key's 64-bit xxhash with seed 0.
func (r *Ring) OwnerHash(h uint64) string {
	switch s := r.slot(h); {
	case s < uint64(len(r.few)):
		return r.members[r.few[s]].Name
	case s < uint64(len(r.many)):
		return r.members[r.many[s]].Name
	}
	return "" // the zero Ring
}

// slot mixes the seed into the key's hash, which costs 2 ns. Without it, rings that differ in their seeds alone would
// still keep the keys of a slot together: the keys of one of 10 members would load 10 members of a second ring with
// max/mean 1.06 instead of 1.02 (averages over 20 seeds).
func (r *Ring) slot(h uint64) uint64 {
	return keyhash.Mix(h, r.seed) >> slotShift
}

// Members returns the members, sorted by name. A weight of 0 has become 1.
func (r *Ring) Members() []Member {
	return slices.Clone(r.members)
}

// Shares yields every member, sorted by name, with the part of all possible keys that it owns, from 0 to 1.
func (r *Ring) Shares() iter.Seq2[Member, float64] {
	return func(yield func(Member, float64) bool) {
		owned := make([]int, len(r.members))
		for _, rank := range r.few {
			owned[rank]++
		}
		for _, rank := range r.many {
			owned[rank]++
		}
		for rank, m := range r.members {
			if !yield(m, float64(owned[rank])/slots) {
				return
			}
		}
	}
}
