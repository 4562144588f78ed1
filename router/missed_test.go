package router_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// TestPeekMissesTopology: a process that missed a topology peeks at a key that has left under it. What a group knew before that is
// not the key's state: the peek follows the key, or is not exact where the newer topology can't be learned of.
func TestPeekMissesTopology(t *testing.T) {
	all := []router.Topology{topo(1, 1), after(topo(2, 2), topo(1, 1)), after(topo(3, 3), topo(2, 2), topo(1, 1))}
	for known := range 2 {
		for _, learns := range []bool{true, false} {
			p, ctx := newPlant(), t.Context()
			behind := p.open(t, all[known], router.Config{})
			await(t, "it has synced", func() bool { return p.published(known+1) == int64(known+1) })
			for _, address := range []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"} {
				p.machine(address).mute.Store(!learns)
			}
			ahead := p.open(t, all[known+1], router.Config{})
			if n := takeN(t, ahead, "k", tenAnHour, 10); n != 10 {
				t.Fatal(n)
			}
			req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
			peeked, err := behind.Peek(ctx, req)
			loaded, failed := behind.Load(ctx, req)
			if err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			judged := loaded.Peek(&req)
			if stale := state.IsRedirect(loaded.Lacks); stale == learns {
				t.Errorf("epoch %d is known, the next one %t: what is loaded lacks %v", known+1, learns, loaded.Lacks)
			}
			for name, r := range map[string]backend.Result{"peek": peeked, "load": judged} {
				if learns && (r.Allowed || r.Guarantee != backend.Exact) ||
					!learns && (r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) || !errors.Is(r.Cause, router.ErrTopologyOld)) {
					t.Errorf("epoch %d is known, the next one %t: %s: allowed %t, %s, %v", known+1, learns, name, r.Allowed, r.Guarantee, r.Cause)
				}
			}
		}
	}
}

// TestPeekMissesTopologyOfOthers: the others went on from the first topology to a third one and never had the second. Only the
// previous owner knows that the key has left.
func TestPeekMissesTopologyOfOthers(t *testing.T) {
	p := newPlant()
	behind := p.open(t, after(topo(2, 2), topo(1, 1)), router.Config{})
	await(t, "it has synced", func() bool { return p.published(1) == 2 && p.published(2) == 2 })
	ahead := p.open(t, after(topo(3, 3), topo(1, 1)), router.Config{})
	if n := takeN(t, ahead, "k", tenAnHour, 10); n != 10 {
		t.Fatal(n)
	}
	peeked, err := behind.Peek(t.Context(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
	if err != nil || peeked.Allowed {
		t.Errorf("allowed %t, %s, %v", peeked.Allowed, peeked.Guarantee, err)
	}
}

// TestPreviousMoved: the server of a group that a new topology no longer has gets another address with the change. The topology
// names it in its Previous, and its keys bring their counts from there.
func TestPreviousMoved(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1), router.Config{})
	takeN(t, r, "k", tenAnHour, 6)
	left := p.machine("10.0.0.1:6379")
	p.mu.Lock()
	p.nodes["10.0.0.9:6379"] = &machine{Memory: left.Memory}
	p.mu.Unlock()
	left.down.Store(true)
	was := topo(1, 1)
	was.Groups[0].Primary = "10.0.0.9:6379"
	update(t, r, after(topo(2, 2), was))
	admitted := 0
	for range 10 {
		result, err := r.Take(t.Context(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		if result.Allowed {
			admitted++
		}
	}
	if admitted != 4 {
		t.Errorf("%d are admitted, and 4 were left", admitted)
	}
	await(t, "the topology is published", func() bool { return p.published(2) == 2 })
	if there, err := p.machine("10.0.0.2:6379").Published(t.Context()); err != nil || !strings.Contains(there.Text, "10.0.0.9") {
		t.Errorf("published: %s, %v", there.Text, err)
	}
}

// TestPublishedAddressesAreOlder: a process gets a topology with addresses that changed after it was published, while it learns of
// the published one. The addresses that it was given stay.
func TestPublishedAddressesAreOlder(t *testing.T) {
	p := newPlant()
	one, two := topo(1, 1), after(topo(2, 2), topo(1, 1))
	behind := p.open(t, one, router.Config{})
	await(t, "it has synced", func() bool { return p.published(1) == 1 })
	ahead := p.open(t, two, router.Config{})
	takeN(t, ahead, "k", tenAnHour, 1)
	await(t, "the topology is published", func() bool { return p.published(1) == 2 && p.published(2) == 2 })
	if err := ahead.Close(); err != nil {
		t.Fatal(err)
	}
	given := after(topo(2, 2), topo(1, 1))
	given.Groups[0].Primary = "10.0.0.3:6379"
	call := func() { update(t, behind, given) }
	p.machine("10.0.0.1:6379").shown.Store(&call)
	if _, err := behind.Take(t.Context(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}); err != nil {
		t.Fatal(err)
	}
	if node := behind.Nodes()[0].Node; node != "10.0.0.3:6379" {
		t.Errorf("calls go to %s, from where the group has moved", node)
	}
}

// TestManyTopologies: a router keeps a bounded number of previous topologies, each with a ring of half a megabyte, however often
// they change. Where windows are longer than that, decisions say so.
func TestManyTopologies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant()
		r := p.open(t, topo(1, 1), router.Config{Heartbeat: -1, Settle: time.Nanosecond})
		for epoch := 2; epoch <= 100; epoch++ {
			update(t, r, unlinked(topo(uint64(epoch), 1, epoch)))
		}
		if n := r.PreviousTopologies(); n > 64 {
			t.Errorf("%d previous topologies are kept", n)
		}
		time.Sleep(time.Second)
		short := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Second/2)}}
		for policy, want := range map[*limit.Policy]backend.Guarantee{short: backend.Exact, tenAnHour: backend.Bounded} {
			result, err := r.Take(t.Context(), backend.Request{Key: "k", Policy: policy, Cost: 1})
			if err != nil || result.Guarantee != want || errors.Is(result.Cause, backend.ErrNotHandedOver) != (want == backend.Bounded) {
				t.Errorf("%s: %s, %v, %v", policy.Limits[0], result.Guarantee, result.Cause, err)
			}
		}
	})
}
