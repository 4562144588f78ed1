package ring_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/ring"
)

// benchKeys are so many that a processor can't learn the way each one takes: with 1000 keys, rendezvous hashing at 10
// members takes half the time, which no server sees.
var benchKeys = func() []string {
	keys := make([]string, 1<<14)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", 1000000+i*7919)
	}
	return keys
}()

var sink string

// rendezvous is what a go-redis Ring has by default: rendezvous hashing over the shards' names with xxhash. It is the
// algorithm of go-redis's internal/hashtag, which can't be imported, and takes the same time.
type rendezvous struct {
	names  []string
	hashes []uint64
}

func newRendezvous(n int) *rendezvous {
	r := &rendezvous{}
	for _, m := range equal(n) {
		r.names = append(r.names, m.Name)
		r.hashes = append(r.hashes, xxhash.Sum64String(m.Name))
	}
	return r
}

func (r *rendezvous) Lookup(key string) string {
	owner, most, hash := 0, uint64(0), xxhash.Sum64String(key)
	for i, h := range r.hashes {
		h ^= hash
		h ^= h >> 12
		h ^= h << 25
		h ^= h >> 27
		if h *= 2685821657736338717; h > most {
			owner, most = i, h
		}
	}
	return r.names[owner]
}

// walk is the lookup that the table of slots won against: an index of points by the upper bits of their hashes, one
// entry for about one point, and a walk from there.
type walk struct {
	shift  uint
	index  []uint32
	points []uint64
	names  []string
}

func newWalk(n int) *walk {
	const points = 8192
	w := &walk{shift: 64}
	for rank, m := range equal(n) {
		w.names = append(w.names, m.Name)
		for i := range points {
			w.points = append(w.points, keyhash.Mix(keyhash.Sum(m.Name), uint64(i))&^0xffff|uint64(rank))
		}
	}
	slices.Sort(w.points)
	w.points = append(w.points, ^uint64(0xffff)|w.points[0]&0xffff)
	for 1<<(64-w.shift) < len(w.points) {
		w.shift--
	}
	i := uint32(0)
	for slot := range uint64(1) << (64 - w.shift) {
		for w.points[i] < slot<<w.shift {
			i++
		}
		w.index = append(w.index, i)
	}
	return w
}

func (w *walk) Owner(key string) string {
	h := keyhash.Mix(keyhash.Sum(key), 0)
	i := w.index[h>>w.shift]
	for w.points[i] < h&^0xffff {
		i++
	}
	return w.names[w.points[i]&0xffff]
}

func BenchmarkOwner(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprintf("sluice/%d", n), func(b *testing.B) {
			r := newRing(b, equal(n), ring.Config{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				sink = r.Owner(benchKeys[i%len(benchKeys)])
			}
		})
		b.Run(fmt.Sprintf("rendezvous/%d", n), func(b *testing.B) {
			r := newRendezvous(n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				sink = r.Lookup(benchKeys[i%len(benchKeys)])
			}
		})
		b.Run(fmt.Sprintf("walk/%d", n), func(b *testing.B) {
			r := newWalk(n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				sink = r.Owner(benchKeys[i%len(benchKeys)])
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			members := equal(n)
			for b.Loop() {
				newRing(b, members, ring.Config{})
			}
			b.ReportMetric(float64(retained(b, members)), "B-kept")
		})
	}
}

// BenchmarkPoints spends every iteration on another seed.
func BenchmarkPoints(b *testing.B) {
	for _, points := range []int{2048, 4096, 8192} {
		b.Run(fmt.Sprint(points), func(b *testing.B) {
			seed, past, worst := uint64(0), 0, 0.0
			for b.Loop() {
				most := 0.0
				r := newRing(b, equal(10), ring.Config{Seed: seed, Points: points})
				for _, share := range r.Shares() {
					most = max(most, 10*share)
				}
				if most > 1.05 {
					past++
				}
				worst = max(worst, most)
				seed++
			}
			b.ReportMetric(float64(past), "seeds>1.05")
			b.ReportMetric(worst, "worst-max/mean")
		})
	}
}

// retained is the memory of a ring, without what New gave back.
func retained(t testing.TB, members []ring.Member) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := newRing(t, members, ring.Config{})
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(r)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

func TestMemory(t *testing.T) {
	const bound = 1e6
	if got := retained(t, equal(100)); got > bound {
		t.Errorf("a ring of 100 members keeps %d bytes, want at most %.0f", got, bound)
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	r := newRing(t, equal(100), ring.Config{})
	for name, lookup := range map[string]func(){
		"Owner":     func() { sink = r.Owner("user:1") },
		"OwnerHash": func() { sink = r.OwnerHash(1) },
	} {
		if n := testing.AllocsPerRun(100, lookup); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
