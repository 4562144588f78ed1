package ring_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/ring"
)

// million hashes a million keys of a shape.
func million(shape string) []uint64 {
	hashes := make([]uint64, 1e6)
	for i := range hashes {
		hashes[i] = keyhash.Sum(fmt.Sprintf(shape, i))
	}
	return hashes
}

// seeds is shorter under the race detector, which can't see more in a sum over another seed.
func seeds() []uint64 {
	if raceEnabled {
		return []uint64{0, 42}
	}
	return []uint64{0, 1, 2, 3, 42, math.MaxUint64}
}

// load counts the keys of each member.
func load(r *ring.Ring, hashes []uint64) map[string]int {
	keys := make(map[string]int)
	for _, h := range hashes {
		keys[r.OwnerHash(h)]++
	}
	return keys
}

// maxOverMean is what capacity planning asks of a ring: how much more than its part the busiest member carries.
func maxOverMean(keys map[string]int, members int) float64 {
	most, sum := 0, 0
	for _, n := range keys {
		most = max(most, n)
		sum += n
	}
	return float64(most) * float64(members) / float64(sum)
}

func TestLoadIsEven(t *testing.T) {
	const bound = 1.05
	for _, shape := range []string{"%d", "user:%d", "tenant/%08x/orders"} {
		hashes := million(shape)
		for _, seed := range seeds() {
			r := newRing(t, equal(10), ring.Config{Seed: seed})
			if got := maxOverMean(load(r, hashes), 10); got > bound {
				t.Errorf("keys %q, seed %d: max/mean load is %.3f, want at most %v", shape, seed, got, bound)
			}
		}
	}
}

func TestShares(t *testing.T) {
	hashes := million("user:%d")
	members := []ring.Member{{"a", 1}, {"b", 2}, {"c", 3}, {"d", 0}, {"e", 10}}
	for _, seed := range seeds() {
		r := newRing(t, members, ring.Config{Seed: seed})
		keys := load(r, hashes)
		var sum float64
		for m, share := range r.Shares() {
			sum += share
			if ideal := float64(m.Weight) / 17; math.Abs(share/ideal-1) > 0.05 {
				t.Errorf("seed %d: %q has a share of %.4f, want %.4f by its weight", seed, m.Name, share, ideal)
			}
			if measured := float64(keys[m.Name]) / 1e6; math.Abs(share/measured-1) > 0.02 {
				t.Errorf("seed %d: %q has a share of %.4f and %.4f of the keys", seed, m.Name, share, measured)
			}
		}
		if sum != 1 {
			t.Errorf("seed %d: the shares add up to %v", seed, sum)
		}
	}
}

func TestAddingAMemberMovesItsShare(t *testing.T) {
	const bound = 1.05
	hashes := million("user:%d")
	for _, n := range []int{10, 100} {
		for _, seed := range seeds() {
			cfg := ring.Config{Seed: seed}
			before, after := newRing(t, equal(n), cfg), newRing(t, equal(n+1), cfg)
			added := equal(n + 1)[n].Name
			moved := 0
			for _, h := range hashes {
				if is := after.OwnerHash(h); is != before.OwnerHash(h) {
					moved++
					if is != added {
						t.Fatalf("a key moved to %q, which was there before", is)
					}
				}
			}
			if got := float64(moved) / 1e6 * float64(n+1); got > bound || got < 1/bound {
				t.Errorf("%d members, seed %d: adding one moved %.3f of its ideal share, want at most %v", n, seed, got, bound)
			}
		}
	}
}

// The keys of one member must load the members of a second ring evenly. They do only if the seed changes which keys
// are neighbours, and not just the points.
func TestSeedsAreIndependent(t *testing.T) {
	hashes := million("user:%d")
	const pairs = 10
	var sum float64
	for seed := range uint64(pairs) {
		outer := newRing(t, equal(10), ring.Config{Seed: seed})
		inner := newRing(t, equal(10), ring.Config{Seed: seed + pairs})
		var own []uint64
		for _, h := range hashes {
			if outer.OwnerHash(h) == "group-03" {
				own = append(own, h)
			}
		}
		sum += maxOverMean(load(inner, own), 10)
	}
	t.Logf("max/mean load of the inner ring is %.3f on average", sum/pairs)
	if got := sum / pairs; got > 1.04 {
		t.Errorf("max/mean load of the inner ring is %.3f on average, want at most 1.04", got)
	}
}
