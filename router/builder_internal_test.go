package router

import (
	"runtime"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// TestBeginAndRelocate: the first sentinel answers while the first snapshot is put in force. Each follower and each heart is
// started once; the race detector sees it if the two don't wait for each other.
func TestBeginAndRelocate(t *testing.T) {
	cfg := Config{Node: func(string) (backend.Backend, error) { return backend.NewMemory(backend.MemoryConfig{}) }}.withDefaults()
	o := &opener{cfg: cfg}
	r := newRouter(cfg, nil, o)
	o.adopt = r.adoptView
	m := o.builder(nil)
	s := m.table(Topology{Groups: []Group{
		{Name: "a", Sentinels: []string{"127.0.0.1:1"}, Master: "m"}, {Name: "b", Primary: "127.0.0.1:2"},
	}}, nil)
	if err := m.finish(); err != nil {
		t.Fatal(err)
	}
	f := s.watchers()[0]
	f.stop = func() {} // it need not run
	relocated := make(chan error)
	go func() {
		for r.table.Load() == nil {
			runtime.Gosched()
		}
		relocated <- r.adoptView(f, sentinelView{primary: "127.0.0.1:3"})
	}()
	r.start(s)
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
