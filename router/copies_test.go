package router_test

import (
	"crypto/ed25519"
	"testing"

	"github.com/sluice-go/sluice/router"
)

// TestEditedInPlace: a caller may keep one topology, edit it in place and call Update, whatever part of it changes.
func TestEditedInPlace(t *testing.T) {
	edits := map[string]func(*router.Topology){
		"primary":                      func(t *router.Topology) { t.Groups[0].Primary = "10.0.0.9:6379" },
		"replica":                      func(t *router.Topology) { t.Groups[0].Replicas[0] = "10.0.0.9:6379" },
		"group of a previous topology": func(t *router.Topology) { t.Previous.Groups[1].Primary = "10.0.0.9:6379" },
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			p, events := newPlant(), &log{}
			previous := topo(1, 1, 2)
			topology := topo(2, 1)
			topology.Baseline, topology.Previous = false, &previous
			topology.Groups[0].Replicas = []string{"10.0.0.3:6379"}
			r := p.open(t, topology, router.Config{OnEvent: events.add})
			edit(&topology)
			if p.has("10.0.0.9:6379") {
				t.Fatal("there is a node before Update")
			}
			update(t, r, topology)
			if !p.has("10.0.0.9:6379") {
				t.Error("Update took the edited topology for the one in force")
			}
			await(t, "an event", func() bool { return events.has("", "", router.TopologyChanged) })

			edit = func(t *router.Topology) { t.Groups[0].Primary = "10.0.0.8:6379" }
			edit(&topology)
			update(t, r, topology)
			if !p.has("10.0.0.8:6379") {
				t.Error("a second Update took the edited topology for the one in force")
			}
		})
	}
}

// TestCyclicTopology: a chain of Previous that leads back to itself is refused, like one that is too long.
func TestCyclicTopology(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1), router.Config{})
	topology := topo(3, 1)
	topology.Baseline, topology.Previous = false, &topology
	if err := r.Update(topology); err == nil {
		t.Error("Update accepted it")
	}
	if r, err := router.Open(topology, router.Config{Node: p.node}); err == nil {
		t.Error("Open accepted it")
		_ = r.Close()
	}
}

// TestEditedConfig: which published topologies are trusted doesn't change with the caller's slices.
func TestEditedConfig(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlant()
	cfg := router.Config{AllowedAddresses: []string{"10.0.0.0/24"}, TopologyKeys: []ed25519.PublicKey{public}}
	r := p.open(t, topo(1, 1), cfg)
	await(t, "it has synced", func() bool { return p.machine("10.0.0.1:6379").looks.Load() > 1 })
	cfg.AllowedAddresses[0] = "192.0.2.1"
	clear(public)
	next, err := topo(2, 1, 2).Sign(private)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, p.machine("10.0.0.1:6379"), next)
	same := topo(1, 1)
	same.Groups[0].Replicas = []string{"10.0.0.3:6379"}
	update(t, r, same) // asks the servers soon
	key := keyOf(p.open(t, topo(2, 1, 2), router.Config{}), "g2", 0)
	await(t, "the published topology", func() bool { return r.Owner(key) == "g2" })
}
