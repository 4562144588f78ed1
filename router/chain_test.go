package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/router"
)

// unlinked is a topology without those before it, and not a baseline either.
func unlinked(t router.Topology) router.Topology {
	t.Previous, t.Baseline = nil, false
	return t
}

// TestHistoryMustBeKnown: a topology that a process starts with names all of those under which keys may have counts, or says
// that there are none. A chain that ends in the middle would lose counts: with 6 of 10 taken under epoch 1, 10 more would be
// admitted under epoch 3, as exact.
func TestHistoryMustBeKnown(t *testing.T) {
	one, two, three := topo(1, 1), topo(2, 2), topo(3, 3)
	p := newPlant()
	first := p.open(t, one, router.Config{})
	takeN(t, first, "k", tenAnHour, 6)
	broken := two
	broken.Previous = &one // and it is a baseline
	for name, test := range map[string]struct {
		topology router.Topology
		field    string
	}{
		"none":          {unlinked(three), "previous"},
		"one level":     {after(three, unlinked(two)), "previous.previous"},
		"two levels":    {after(topo(9, 3), unlinked(topo(8, 3)), unlinked(topo(7, 1))), "previous.previous.previous"},
		"both":          {broken, "baseline"},
		"both, earlier": {router.Topology{Epoch: 3, Groups: three.Groups, Previous: &broken}, "previous.baseline"},
	} {
		r, err := router.Open(test.topology, router.Config{Node: p.node})
		var bad *router.ConfigError
		if !errors.As(err, &bad) || bad.Field != test.field {
			t.Errorf("%s: %v, want %s to be refused", name, err, test.field)
		}
		if err == nil {
			_ = r.Close()
		}
	}
	for name, topology := range map[string]router.Topology{"all": after(three, two, one), "without those between": after(three, one)} {
		r := p.open(t, topology, router.Config{Backend: redisbackend.Config{}})
		if n := takeN(t, r, "k", tenAnHour, 10); n > 4 {
			t.Errorf("%s: %d are admitted, and 4 were left", name, n)
		}
	}
}

// TestUpdateAcrossEpochs: a process that missed a topology learns of it from the Previous of the next one, and finds the counts
// there; it refuses a next one that doesn't name it.
func TestUpdateAcrossEpochs(t *testing.T) {
	one, two, three := topo(1, 1, 2), unlinked(topo(2, 3, 4)), unlinked(topo(3, 5, 6))
	for name, next := range map[string]router.Topology{"next": after(three, two), "with all": after(three, two, one)} {
		p := newPlant()
		key, _, _ := moved(t, p, one, two)
		// The one that is behind may not take over what the servers publish, however late it first asks them.
		ahead, behind := p.open(t, one, router.Config{}), p.open(t, one, router.Config{AllowedAddresses: []string{"10.0.0.1"}})
		takeN(t, ahead, key, tenAnHour, 2)
		update(t, ahead, two)
		takeN(t, ahead, key, tenAnHour, 5)
		if err := behind.Update(three); err == nil || behind.Owner(key) == ahead.Owner(key) {
			t.Errorf("%s: it takes over epoch 3, knows epoch 1 and nothing of 2: %v", name, err)
		} else if !strings.Contains(err.Error(), "the topology before epoch 3") {
			t.Error(err)
		}
		update(t, behind, next)
		if n := takeN(t, behind, key, tenAnHour, 10); n != 3 {
			t.Errorf("%s: %d admitted, and 3 were left", name, n)
		}
	}
}

// TestPublishedHistory: what a process publishes names all that it knows of; a process that is behind learns of it, and one that
// starts with that text needs no other source.
func TestPublishedHistory(t *testing.T) {
	p := newPlant()
	one, two, three := topo(1, 1), unlinked(topo(2, 2)), unlinked(topo(3, 3))
	r := p.open(t, one, router.Config{})
	takeN(t, r, "k", tenAnHour, 6)
	update(t, r, two)
	update(t, r, three)
	await(t, "it is published", func() bool { return p.published(3) == 3 })
	there, err := p.machine("10.0.0.3:6379").Published(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	published, err := router.ParseTopology([]byte(there.Text))
	if err != nil {
		t.Fatal(err)
	}
	fresh := p.open(t, published, router.Config{})
	if n := takeN(t, fresh, "k", tenAnHour, 10); n != 4 {
		t.Errorf("%d admitted, and 4 were left", n)
	}
}

// takeLossy takes n times where counts may be lost, and returns how many were admitted.
func takeLossy(t *testing.T, b backend.Backend, key string, n int) (admitted int) {
	t.Helper()
	for range n {
		result, err := b.Take(t.Context(), backend.Request{Key: key, Policy: tenAnHour, Cost: 1})
		if err != nil || result.Guarantee != backend.Bounded || !errors.Is(result.Cause, backend.ErrCountsLost) {
			t.Fatalf("%s, %v, %v", result.Guarantee, result.Cause, err)
		}
		if result.Allowed {
			admitted++
		}
	}
	return admitted
}

// TestAddressesOnly: topologies of one epoch that differ in addresses run together, and a change of addresses is put in force
// while calls go on: by Update, and by a file. No key moves, none loses its counts, and previous topologies stay known.
func TestAddressesOnly(t *testing.T) {
	p := newPlant()
	one, two := topo(1, 1, 2), topo(2, 1, 2, 3)
	key, _, _ := moved(t, p, one, two)
	var events log
	r := p.open(t, one, router.Config{OnEvent: events.add})
	takeN(t, r, key, tenAnHour, 6)
	two = after(two, one)
	update(t, r, two)
	await(t, "it is published", func() bool { return p.published(1) == 2 && p.published(2) == 2 && p.published(3) == 2 })

	// The servers of g1 and g2 have another address now.
	p.mu.Lock()
	p.nodes["10.0.0.11:6379"], p.nodes["10.0.0.12:6379"] = p.nodes["10.0.0.1:6379"], p.nodes["10.0.0.2:6379"]
	p.mu.Unlock()
	elsewhere := after(topo(2, 1, 2, 3), one)
	elsewhere.Groups[0].Primary, elsewhere.Groups[1].Primary = "10.0.0.11:6379", "10.0.0.12:6379"
	other := p.open(t, elsewhere, router.Config{})
	path := filepath.Join(t.TempDir(), "groups.json")
	write := func(topology router.Topology) {
		t.Helper()
		if err := os.WriteFile(path, marshal(t, topology), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(two)
	if err := r.WatchFile(path); err != nil {
		t.Fatal(err)
	}
	write(elsewhere)
	has := func(address string) bool {
		for _, n := range r.Nodes() {
			if n.Node == address {
				return true
			}
		}
		return false
	}
	await(t, "the addresses of the file", func() bool { return has("10.0.0.11:6379") && has("10.0.0.12:6379") && !has("10.0.0.1:6379") })
	if r.PreviousTopologies() != 1 {
		t.Errorf("%d previous topologies are known, want 1", r.PreviousTopologies())
	}
	// A primary with another address may be another server: a process that sees the change says so, and one that starts and
	// finds it between the topology and its previous one.
	if n := takeLossy(t, other, key, 2); n != 2 {
		t.Errorf("%d of 2 admitted", n)
	}
	if n := takeLossy(t, r, key, 10); n != 2 {
		t.Errorf("%d admitted, and 2 were left", n)
	}
	for _, e := range events.all() {
		if e.Kind == router.TopologyRejected {
			t.Error(e)
		}
	}
}

// TestEditedTopologies: an edit that changes the owner of a key needs a new epoch, and the error says so: what differs, and which
// number to write. Calls go on as before.
func TestEditedTopologies(t *testing.T) {
	p := newPlant()
	base := topo(5, 1, 2)
	r := p.open(t, base, router.Config{})
	heavier := topo(5, 1, 2)
	heavier.Groups[1].Weight = 3
	seeded := topo(5, 1, 2)
	seeded.Seed = 7
	back := topo(4, 1, 2)
	far := topo(5+router.MaxEpochJump+1, 1, 2)
	for name, test := range map[string]struct {
		topology router.Topology
		is       error
		says     string
	}{
		"an epoch forgotten":       {topo(5, 1, 2, 3), router.ErrTopologyConflict, `epoch = 5: must be 6, with epoch 5 as its "previous"` + ": keys change their owner against what this process has as epoch 5 (group \"g3\" is new)"},
		"a group gone":             {topo(5, 1), router.ErrTopologyConflict, `(group "g2" is missing)`},
		"a weight":                 {heavier, router.ErrTopologyConflict, `(group "g2" has weight 3, had 1)`},
		"a seed":                   {seeded, router.ErrTopologyConflict, `(the seed is 7, was 0)`},
		"several":                  {topo(5, 3, 4, 5, 6, 7), router.ErrTopologyConflict, `group "g6" is new, and 3 more)`},
		"an epoch that goes back":  {back, router.ErrTopologyOld, `must be above 5, which is in force: to go back, publish it as epoch 6 with epoch 5 as its "previous"`},
		"an epoch that is too far": {far, nil, "must be at most 1000005, which is 1000000 above the one in force"},
	} {
		err := r.Update(test.topology)
		var bad *router.ConfigError
		if !errors.As(err, &bad) || bad.Field != "epoch" || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
		if n := takeN(t, r, name, tenAnHour, 1); n != 1 {
			t.Errorf("%s: calls don't go on", name)
		}
	}

	await(t, "it is published", func() bool { return p.published(1) == 5 && p.published(2) == 5 })
	odd := p.open(t, topo(5, 1, 2, 3), router.Config{})
	await(t, "a process that starts with an epoch forgotten says what to write", func() bool {
		_, err := odd.Take(context.Background(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
		return errors.Is(err, router.ErrTopologyConflict) && strings.Contains(err.Error(), `must be 6, with epoch 5 as its "previous"`) &&
			strings.Contains(err.Error(), `(group "g3" is new)`)
	})
}

func marshal(t testing.TB, topology router.Topology) []byte {
	t.Helper()
	text, err := json.Marshal(topology)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestUpdateAddressOfPrevious: another address of a group that only a previous topology has is put in force: counts are fetched
// there, and what is published says so.
func TestUpdateAddressOfPrevious(t *testing.T) {
	p := newPlant()
	one, two := topo(1, 1), topo(2, 2)
	var events log
	r := p.open(t, after(two, one), router.Config{Heartbeat: -1, OnEvent: events.add})
	await(t, "it is published", func() bool { return p.published(2) == 2 })
	elsewhere := topo(1, 1)
	elsewhere.Groups[0].Primary = "10.0.0.9:6379"
	for range 4 {
		if _, err := p.machine("10.0.0.9:6379").Take(t.Context(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	update(t, r, after(two, elsewhere))
	if n := takeLossy(t, r, "k", 10); n != 6 { // it may be another server
		t.Errorf("%d admitted, and 6 were left", n)
	}
	await(t, "an event", func() bool { return len(events.all()) > 0 })
	if got := events.all()[0].String(); got != "topology changed (2 to 2)" {
		t.Error(got)
	}
	update(t, r, after(topo(3, 3), two, elsewhere))
	await(t, "the next is published", func() bool { return p.published(3) == 3 })
	there, err := p.machine("10.0.0.3:6379").Published(t.Context())
	if err != nil || strings.Contains(there.Text, "10.0.0.1:") || !strings.Contains(there.Text, "10.0.0.9:") {
		t.Errorf("%q, %v", there.Text, err)
	}
}

// TestPublishedChainIsNoBaseline: of more topologies than can be named, those left out are not said to be over. A process that
// knows none of the chain doesn't take it over; one that does, does.
func TestPublishedChainIsNoBaseline(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1), router.Config{Heartbeat: -1})
	for epoch := uint64(2); epoch <= 19; epoch++ {
		update(t, r, unlinked(topo(epoch, 1, 1+int(epoch))))
	}
	await(t, "it is published", func() bool { return p.published(1) == 19 })
	there, err := p.machine("10.0.0.1:6379").Published(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	published, err := router.ParseTopology([]byte(there.Text))
	if err != nil {
		t.Fatal(err)
	}
	oldest, count := &published, 0
	for ; oldest.Previous != nil; oldest = oldest.Previous {
		count++
	}
	if count != 16 || oldest.Epoch != 3 || oldest.Baseline {
		t.Errorf("%d before it, the oldest of epoch %d, baseline %t", count, oldest.Epoch, oldest.Baseline)
	}
	var events log
	p.open(t, topo(1, 1), router.Config{Heartbeat: -1, OnEvent: events.add})
	await(t, "it is refused", func() bool { return len(events.rejections()) > 0 })
	if said := events.rejections()[0]; !strings.Contains(said, "must be the topology before epoch 3") {
		t.Error(said)
	}
	behind := p.open(t, after(topo(2, 1, 3), topo(1, 1)), router.Config{Heartbeat: -1})
	await(t, "it is taken over", func() bool { return behind.PreviousTopologies() == 18 })
}

// TestSkippedEpoch: a process whose chain leaves out a topology that others had in force doesn't know where a key's counts are, and
// says so.
func TestSkippedEpoch(t *testing.T) {
	p := newPlant()
	one, two := topo(1, 1), topo(2, 2)
	others := p.open(t, after(two, one), router.Config{})
	takeN(t, others, "k", tenAnHour, 6)
	r := p.open(t, after(topo(3, 1), one), router.Config{})
	result, err := r.Take(t.Context(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
	if err != nil || result.Guarantee != backend.Bounded || !errors.Is(result.Cause, router.ErrTopologyOld) ||
		!errors.Is(result.Cause, backend.ErrNotHandedOver) {
		t.Errorf("%s, %v, %v", result.Guarantee, result.Cause, err)
	}
}
