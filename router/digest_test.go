package router_test

import (
	"math/rand/v2"
	"testing"

	"github.com/sluice-go/sluice/router"
)

// TestDigest: it differs between topologies of other epochs or with other owners of keys, not by the order of groups, by
// addresses, nor by what was before.
func TestDigest(t *testing.T) {
	base := router.Topology{Epoch: 7, Seed: 3, Groups: []router.Group{
		{Name: "a", Primary: "10.0.0.1:1", Replicas: []string{"10.0.1.1:1"}}, {Name: "b", Weight: 2, Primary: "10.0.0.2:1"},
		{Name: "c", Primary: "10.0.0.3:1"}, {Name: "d", Primary: "10.0.0.4:1"},
	}}
	copied := func(change func(*router.Topology)) router.Topology {
		c := base
		c.Groups = append([]router.Group(nil), base.Groups...)
		change(&c)
		return c
	}
	digest := base.Digest()
	random := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		shuffled := copied(func(c *router.Topology) {
			random.Shuffle(len(c.Groups), func(i, j int) { c.Groups[i], c.Groups[j] = c.Groups[j], c.Groups[i] })
		})
		first := shuffled.Groups[0].Name
		if shuffled.Digest() != digest || shuffled.Groups[0].Name != first {
			t.Fatalf("in another order, %v: %s, want %s", shuffled.Groups, shuffled.Digest(), digest)
		}
	}
	for _, previous := range []router.Topology{topo(6, 1), topo(5, 1, 2, 3)} {
		if got := copied(func(c *router.Topology) { c.Previous = &previous }).Digest(); got != digest {
			t.Errorf("with a past: %s, want %s", got, digest)
		}
	}
	for name, change := range map[string]func(*router.Topology){
		"an address": func(c *router.Topology) { c.Groups[1].Primary = "10.0.0.9:1" },
		"a replica":  func(c *router.Topology) { c.Groups[0].Replicas = nil },
		"another kind": func(c *router.Topology) {
			c.Groups[1] = router.Group{Name: "b", Weight: 2, Cluster: []string{"10.0.0.2:1"}}
		},
		"two addresses":    func(c *router.Topology) { c.Groups[2].Name, c.Groups[3].Name = "d", "c" },
		"a default weight": func(c *router.Topology) { c.Groups[2].Weight = 1 },
		"baseline":         func(c *router.Topology) { c.Baseline = true },
		"signature":        func(c *router.Topology) { c.Signature = []byte("x") },
	} {
		if got := copied(change).Digest(); got != digest {
			t.Errorf("%s changes the digest, and no key changes its owner", name)
		}
	}
	seen := map[string]string{digest: "the same"}
	for name, change := range map[string]func(*router.Topology){
		"epoch":    func(c *router.Topology) { c.Epoch++ },
		"seed":     func(c *router.Topology) { c.Seed++ },
		"no seed":  func(c *router.Topology) { c.Seed = 0 },
		"a group":  func(c *router.Topology) { c.Groups = c.Groups[:3] },
		"a name":   func(c *router.Topology) { c.Groups[0].Name = "e" },
		"a weight": func(c *router.Topology) { c.Groups[1].Weight = 3 },
	} {
		got := copied(change).Digest()
		if other, is := seen[got]; is {
			t.Errorf("another of %s has the digest of %s", name, other)
		}
		seen[got] = name
	}
	if base.Digest() != digest {
		t.Error("a digest changed its topology")
	}
}
