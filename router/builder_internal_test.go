package router

import (
	"runtime"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
)

// TestStartAndAdoptView: the first sentinel answers while the first table is put in force. Each watcher and the heartbeats of each
// node start once; the race detector fails if the two don't wait for each other.
func TestStartAndAdoptView(t *testing.T) {
	cfg := Config{Node: func(string) (backend.Backend, error) { return memory.New(memory.Config{}) }}.withDefaults()
	o := &opener{cfg: cfg}
	r := newRouter(cfg, nil, o)
	o.adopt = r.adoptView
	b := o.builder(nil)
	table := &routingTable{placement: b.placement(Topology{Groups: []Group{
		{Name: "a", Sentinels: []string{"127.0.0.1:1"}, Master: "m"}, {Name: "b", Primary: "127.0.0.1:2"},
	}})}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	w := table.watchers()[0]
	w.stop = func() {} // it need not run
	adopted := make(chan error)
	go func() {
		for r.table.Load() == nil {
			runtime.Gosched()
		}
		adopted <- r.adoptView(w, sentinelView{primary: "127.0.0.1:3"})
	}()
	r.start(table)
	select {
	case err := <-adopted:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("they wait for each other")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
