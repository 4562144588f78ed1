package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"
	rdv "github.com/dgryski/go-rendezvous"
	"github.com/serialx/hashring"
	stathat "stathat.com/c/consistent"

	"github.com/sluice-go/sluice/ring"
)

// A ringMaker builds a way to find the owner of a key, with the module's defaults.
type ringMaker struct {
	name  string
	build func(members []string) (lookup func(key string) string, err error)
}

var ringPeers = []ringMaker{
	{sluice, buildSluiceRing},
	{rendezvous, buildRendezvous},
	{"stathat", buildStathat},
	{"buraksezer", buildBuraksezer},
	{"serialx", buildSerialx},
}

func buildSluiceRing(members []string) (func(string) string, error) {
	var all []ring.Member
	for _, name := range members {
		all = append(all, ring.Member{Name: name})
	}
	r, err := ring.New(all, ring.Config{})
	if err != nil {
		return nil, err
	}
	return r.Owner, nil
}

// buildRendezvous is rendezvous hashing as a go-redis Ring has it by default, with its hash.
func buildRendezvous(members []string) (func(string) string, error) {
	return rdv.New(members, xxhash.Sum64String).Lookup, nil
}

func buildStathat(members []string) (func(string) string, error) {
	c := stathat.New()
	c.Set(members)
	return func(key string) string {
		owner, _ := c.Get(key) // fails only without members
		return owner
	}, nil
}

// buraksezerMember and buraksezerHasher are what buraksezer/consistent asks for; the rest are the defaults of its
// documentation.
type buraksezerMember string

func (m buraksezerMember) String() string { return string(m) }

type buraksezerHasher struct{}

func (buraksezerHasher) Sum64(data []byte) uint64 { return xxhash.Sum64(data) }

func buildBuraksezer(members []string) (func(string) string, error) {
	var all []consistent.Member
	for _, name := range members {
		all = append(all, buraksezerMember(name))
	}
	c := consistent.New(all, consistent.Config{Hasher: buraksezerHasher{}})
	return func(key string) string { return c.LocateKey([]byte(key)).String() }, nil
}

func buildSerialx(members []string) (func(string) string, error) {
	r := hashring.New(members)
	return func(key string) string {
		owner, _ := r.GetNode(key) // false only without members
		return owner
	}, nil
}

// RingRow is what the rings of one size did.
type RingRow struct {
	Members int          `json:"members"`
	Busy    bool         `json:"busy"` // other work uses the processor's caches between lookups
	Peers   []RingResult `json:"peers"`
}

func (r *RingRow) name() string {
	cache := "idle"
	if r.Busy {
		cache = "busy"
	}
	return fmt.Sprintf("ring of %d members, %s cache", r.Members, cache)
}

// RingResult is the medians of one ring's rounds, and how it spreads keys.
type RingResult struct {
	Peer    string    `json:"peer"`
	Nanos   float64   `json:"ns_per_lookup"`
	Allocs  float64   `json:"allocs"`
	MaxMean float64   `json:"max_mean"` // keys of the fullest member over those of the mean
	Moved   float64   `json:"moved"`    // keys that move when one member is added, over as few as possible
	Rounds  []float64 `json:"ns_of_rounds"`
}

func (r *RingRow) find(peer string) *RingResult {
	for i := range r.Peers {
		if r.Peers[i].Peer == peer {
			return &r.Peers[i]
		}
	}
	return nil
}

func runRings(c *config) ([]RingRow, error) {
	var makers []ringMaker
	for _, m := range ringPeers {
		if len(only([]maker{{name: m.name}}, c.peers)) > 0 {
			makers = append(makers, m)
		}
	}
	keys := makeKeys(c.spread)
	timed := keys[:min(len(keys), 1<<14)] // so many that a processor can't learn the way each one takes
	random := rand.New(rand.NewPCG(c.seed, 3))

	other := make([]byte, otherWork)
	var rows []RingRow
	for _, n := range []int{10, 100} {
		idle, busy := RingRow{Members: n}, RingRow{Members: n, Busy: true}
		lookups := make([]func(string) string, len(makers))
		for i, m := range makers {
			lookup, err := m.build(memberNames(n))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			more, err := m.build(memberNames(n + 1))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			lookups[i] = lookup
			maxMean, moved := balance(lookup, more, keys, n)
			idle.Peers = append(idle.Peers, RingResult{Peer: m.name, MaxMean: maxMean, Moved: moved})
		}
		busy.Peers = slices.Clone(idle.Peers)
		idle.run(c, lookups, timed, nil, random)
		busy.run(c, lookups, timed, other, random)
		rows = append(rows, idle, busy)
	}
	return rows, nil
}

// run lets the rings take turns. The work between lookups, if there is any, is to go through other.
func (r *RingRow) run(c *config, lookups []func(string) string, keys []string, other []byte, random *rand.Rand) {
	fmt.Fprintln(c.verbose, r.name())
	allocs := make([][]float64, len(lookups))
	for range c.rounds {
		for _, i := range random.Perm(len(lookups)) {
			nanos, mallocs := ringSlice(lookups[i], keys, other, c.slice/10)
			r.Peers[i].Rounds = append(r.Peers[i].Rounds, nanos)
			allocs[i] = append(allocs[i], mallocs)
		}
	}
	for i := range r.Peers {
		p := &r.Peers[i]
		p.Nanos, p.Allocs = median(p.Rounds), median(allocs[i])
	}
}

func memberNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("group-%d", i)
	}
	return names
}

// balance is how full the fullest of n members is, as a ratio to the mean, and how many keys the ring with one member
// more gives to another owner, as a ratio to that member's fair share.
func balance(lookup, more func(string) string, keys []string, n int) (maxMean, moved float64) {
	counts := make(map[string]int, n)
	most, changed := 0, 0
	for _, key := range keys {
		owner := lookup(key)
		counts[owner]++
		most = max(most, counts[owner])
		if more(key) != owner {
			changed++
		}
	}
	all := float64(len(keys))
	return float64(most) * float64(n) / all, float64(changed) * float64(n+1) / all
}

const (
	otherWork = 4 << 20 // bytes: more than a core's own caches hold
	ringBatch = 64      // lookups that are timed together
)

// ringSlice looks keys up for d. With no other work between its batches, the ring is in the processor's caches as far as it fits.
func ringSlice(lookup func(string) string, keys []string, other []byte, d time.Duration) (nanos, allocs float64) {
	var before, after runtime.MemStats
	runtime.GC()
	for _, key := range keys {
		lookup(key)
	}
	runtime.ReadMemStats(&before)
	n, elapsed := 0, time.Duration(0)
	for begin := time.Now(); n == 0 || time.Since(begin) < d; {
		for i := 0; i < len(other); i += 64 { // a cache line
			other[i]++
		}
		batch := keys[n%len(keys):]
		batch = batch[:min(ringBatch, len(batch))]
		start := time.Now()
		for _, key := range batch {
			lookup(key) // not inlined, so not left out either
		}
		elapsed += time.Since(start)
		n += len(batch)
	}
	runtime.ReadMemStats(&after)
	return float64(elapsed.Nanoseconds()) / float64(n), float64(after.Mallocs-before.Mallocs) / float64(n)
}
