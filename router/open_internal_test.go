package router

import (
	"runtime"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
)

// TestBeginAndRelocate: the first sentinel answers while the first snapshot is put in force. Each follower and each heart is
// started once; the race detector sees it if the two don't wait for each other.
func TestBeginAndRelocate(t *testing.T) {
	cfg := Config{Node: func(string) (backend.Backend, error) { return memory.New(memory.Config{}) }}.withDefaults()
	o := &opener{cfg: cfg}
	r := newRouter(cfg, nil, o)
	o.relocate = r.relocate
	m := o.maker(nil)
	s := m.snapshot(Topology{Groups: []Group{
		{Name: "a", Sentinels: []string{"127.0.0.1:1"}, Master: "m"}, {Name: "b", Primary: "127.0.0.1:2"},
	}}, nil)
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	f := s.followers()[0]
	f.leave = func() {} // it need not run
	relocated := make(chan error)
	go func() {
		for r.snapshot.Load() == nil {
			runtime.Gosched()
		}
		relocated <- r.relocate(f, sighting{primary: "127.0.0.1:3"})
	}()
	r.begin(s)
	select {
	case err := <-relocated:
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
