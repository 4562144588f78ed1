package router

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

// lossy is a memory that has lost counts.
type lossy struct{ *memory.Memory }

func (lossy) Doubt(backend.Request) error { return backend.ErrCountsLost }

// TestViewOfRemovedGroup: an answer of sentinels that comes after their group was removed opens no nodes and reports no change.
func TestViewOfRemovedGroup(t *testing.T) {
	var opened []string
	var events []Event
	r, err := Open(Topology{Epoch: 1, Groups: []Group{{Name: "a", Sentinels: []string{"127.0.0.1:1"}, Master: "m"}}}, Config{
		Heartbeat: -1, OnEvent: func(e Event) { events = append(events, e) },
		Node: func(address string) (backend.Backend, error) {
			opened = append(opened, address)
			return memory.New(memory.Config{})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := r.table.Load().watchers()[0]
	if err := r.Update(Topology{Epoch: 1, Groups: []Group{{Name: "a", Primary: "127.0.0.1:2"}}}); err != nil {
		t.Fatal(err)
	}
	table := r.table.Load()
	if err := r.adoptView(w, sentinelView{epoch: 1, primary: "127.0.0.1:3", replicas: []string{"127.0.0.1:4"}}); err != nil {
		t.Fatal(err)
	}
	if r.table.Load() != table || w.group.Load() != nil {
		t.Error("the view is in force")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(opened, []string{"127.0.0.1:2"}) {
		t.Errorf("opened %q", opened)
	}
	for _, e := range events {
		if e.Kind == PrimaryChanged {
			t.Error(e)
		}
	}
}

// TestPendingPlace: a call that began before the sentinels named the primary acts on that primary once they do: it asks it what
// it has lost, learns a newer topology from it, and names it in errors.
func TestPendingPlace(t *testing.T) {
	node := lossy{}
	var err error
	if node.Memory, err = memory.New(memory.Config{}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Heartbeat: -1, AllowedAddresses: []string{"*"}, Node: func(string) (backend.Backend, error) { return node, nil },
	}.withDefaults()
	o := &opener{cfg: cfg}
	r := newRouter(cfg, nil, o) // without syncLoop, which would learn the topology by itself
	o.adopt = r.adoptView
	b := o.builder(nil)
	table := &routingTable{placement: b.placement(Topology{Epoch: 1, Groups: []Group{{Name: "a", Sentinels: []string{"127.0.0.1:1"}, Master: "m"}}})}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	table.watchers()[0].stop = func() {} // it need not run
	r.start(table)

	next := Topology{Epoch: 2, Groups: []Group{{Name: "b", Primary: "127.0.0.1:2"}}}
	text, err := json.Marshal(next)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.Publish(t.Context(), control.Announcement{Version: 2, Digest: next.Digest(), Text: string(text)}); err != nil {
		t.Fatal(err)
	}
	req := backend.Request{Key: "k", Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(5)}}, Cost: 1}
	var rt route
	r.resolveBy(&rt, table, &req)
	m := r.moving(&rt, req, false)
	if !m.Owner.pending {
		t.Fatal("the group isn't pending")
	}
	if err := r.adoptView(table.watchers()[0], sentinelView{epoch: 1, primary: "127.0.0.1:3"}); err != nil {
		t.Fatal(err)
	}

	if err := m.Owner.Doubt(req); !errors.Is(err, backend.ErrCountsLost) {
		t.Errorf("doubt: %v", err)
	}
	failed, ok := errors.AsType[*backend.Error](m.Owner.fail(backend.Unavailable, context.Canceled))
	if !ok || failed.Node != "a/127.0.0.1:3" {
		t.Errorf("failed: %v", failed)
	}
	route, err := m.Redirect(t.Context(), m.Owner, 2)
	if err != nil || route.Owner.group == nil || route.Owner.name != "b" {
		t.Errorf("redirect: %+v, %v", route.Owner.group, err)
	}
}
