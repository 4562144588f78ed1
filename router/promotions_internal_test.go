package router

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

// TestPromotions: a group whose primary is not the one it had may lack counts, however the group came to it.
func TestPromotions(t *testing.T) {
	single := func(address string) Group { return Group{Name: "a", Primary: address} }
	cluster := func(address string) Group { return Group{Name: "a", Cluster: []string{address}} }
	sentinels := func(address string) Group { return Group{Name: "a", Sentinels: []string{address}, Master: "m"} }
	other := Group{Name: "b", Primary: "127.0.0.1:1"}
	at := func(epoch uint64, previous *Topology, groups ...Group) Topology {
		return Topology{Epoch: epoch, Groups: groups, Previous: previous}
	}
	with, without := at(1, nil, single("127.0.0.1:2"), other), at(2, nil, other)
	withoutAfter := at(2, &with, other)
	const named = "" // stands for an answer of the sentinels
	view := func(address string) Topology { return Topology{Groups: []Group{{Name: named, Primary: address}}} }
	tests := map[string]struct {
		steps []Topology
		doubt bool
	}{
		"the same":                         {[]Topology{at(1, nil, single("127.0.0.1:2")), at(2, nil, single("127.0.0.1:2"), other)}, false},
		"another address":                  {[]Topology{at(1, nil, single("127.0.0.1:2")), at(2, nil, single("127.0.0.1:3"))}, true},
		"another address, same epoch":      {[]Topology{at(1, nil, single("127.0.0.1:2")), at(1, nil, single("127.0.0.1:3"))}, true},
		"back under the same address":      {[]Topology{with, without, at(3, nil, single("127.0.0.1:2"), other)}, false},
		"back under another address":       {[]Topology{with, without, at(3, nil, single("127.0.0.1:3"), other)}, true},
		"start, back under another":        {[]Topology{at(3, &withoutAfter, single("127.0.0.1:3"), other)}, true},
		"start, back under the same":       {[]Topology{at(3, &withoutAfter, single("127.0.0.1:2"), other)}, false},
		"jump over the former address":     {[]Topology{at(0, nil, other), at(3, &withoutAfter, single("127.0.0.1:3"), other)}, true},
		"server to cluster":                {[]Topology{at(1, nil, single("127.0.0.1:2")), at(2, nil, cluster("127.0.0.1:3"))}, true},
		"server to cluster, same address":  {[]Topology{at(1, nil, single("127.0.0.1:2")), at(2, nil, cluster("127.0.0.1:2"))}, true},
		"cluster to server":                {[]Topology{at(1, nil, cluster("127.0.0.1:2")), at(2, nil, single("127.0.0.1:2"))}, true},
		"cluster with other seeds":         {[]Topology{at(1, nil, cluster("127.0.0.1:2")), at(2, nil, cluster("127.0.0.1:3"))}, false},
		"first answer of sentinels":        {[]Topology{at(1, nil, sentinels("127.0.0.1:9")), view("127.0.0.1:2")}, false},
		"failover":                         {[]Topology{at(1, nil, sentinels("127.0.0.1:9")), view("127.0.0.1:2"), view("127.0.0.1:3")}, true},
		"server to sentinels of it":        {[]Topology{at(1, nil, single("127.0.0.1:2")), at(1, nil, sentinels("127.0.0.1:9")), view("127.0.0.1:2")}, false},
		"server to sentinels of another":   {[]Topology{at(1, nil, single("127.0.0.1:2")), at(1, nil, sentinels("127.0.0.1:9")), view("127.0.0.1:3")}, true},
		"other sentinels before an answer": {[]Topology{at(1, nil, single("127.0.0.1:2")), at(1, nil, sentinels("127.0.0.1:9")), at(1, nil, sentinels("127.0.0.1:8")), view("127.0.0.1:3")}, true},
		"failover, then other sentinels":   {[]Topology{at(1, nil, sentinels("127.0.0.1:9")), view("127.0.0.1:2"), view("127.0.0.1:3"), at(1, nil, sentinels("127.0.0.1:8")), view("127.0.0.1:3")}, true},
		"other sentinels, same primary":    {[]Topology{at(1, nil, sentinels("127.0.0.1:9")), view("127.0.0.1:2"), at(1, nil, sentinels("127.0.0.1:8")), view("127.0.0.1:2")}, false},
	}
	req := backend.Request{Key: "k", Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(5)}}, Cost: 1}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := Open(test.steps[0], Config{
				Heartbeat: -1, Node: func(string) (backend.Backend, error) { return memory.New(memory.Config{}) },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for i, step := range test.steps[1:] {
				if step.Groups[0].Name == named {
					w := r.table.Load().byName["a"].watcher
					err = r.adoptView(w, sentinelView{epoch: int64(i), primary: step.Groups[0].Primary})
				} else {
					err = r.Update(step)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := r.table.Load().byName["a"].doubt(req); errors.Is(err, backend.ErrCountsLost) != test.doubt {
				t.Errorf("doubt: %v, want %t", err, test.doubt)
			}
		})
	}
}

// evicting is a memory whose loads say that keys were evicted.
type evicting struct{ *memory.Memory }

func (e evicting) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	loaded, err := e.Memory.Load(ctx, req)
	loaded.Lacks = backend.ErrEvicted
	return loaded, err
}

// TestLoadOfPromoted: a load has all reasons why counts may be missing, the server's own and that it took the place of another one.
func TestLoadOfPromoted(t *testing.T) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string) Topology {
		return Topology{Epoch: 1, Groups: []Group{{Name: "a", Primary: address}}}
	}
	r, err := Open(at("127.0.0.1:2"), Config{
		Heartbeat: -1, Node: func(string) (backend.Backend, error) { return evicting{store}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Update(at("127.0.0.1:3")); err != nil {
		t.Fatal(err)
	}
	req := backend.Request{Key: "k", Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(5)}}, Cost: 1}
	loaded, err := r.Load(t.Context(), req)
	if err != nil || !errors.Is(loaded.Lacks, backend.ErrEvicted) || !errors.Is(loaded.Lacks, backend.ErrCountsLost) {
		t.Errorf("lacks %v, %v", loaded.Lacks, err)
	}
}

// TestPromotionIsKnownFirst: calls that wait until sentinels name a primary know that it took the place of another one as soon as
// they can reach it.
func TestPromotionIsKnownFirst(t *testing.T) {
	req := backend.Request{Key: "k", Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(5)}}, Cost: 1}
	at := func(first Group) Topology { // so many groups that it takes a while to put one in force
		groups := []Group{first}
		for i := range 2000 {
			groups = append(groups, Group{Name: fmt.Sprint(i), Primary: fmt.Sprintf("127.0.0.2:%d", i+1)})
		}
		return Topology{Epoch: 1, Groups: groups}
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(at(Group{Name: "a", Primary: "127.0.0.1:2"}), Config{Heartbeat: -1, Node: func(string) (backend.Backend, error) { return store, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Update(at(Group{Name: "a", Sentinels: []string{"127.0.0.1:9"}, Master: "m"})); err != nil {
		t.Fatal(err)
	}
	pending := r.table.Load().byName["a"]
	doubt := make(chan error, 1)
	go func() {
		for pending.current().pending {
			runtime.Gosched()
		}
		doubt <- pending.current().doubt(req)
	}()
	if err := r.adoptView(pending.watcher, sentinelView{primary: "127.0.0.1:3"}); err != nil {
		t.Fatal(err)
	}
	if err := <-doubt; !errors.Is(err, backend.ErrCountsLost) {
		t.Errorf("doubt: %v", err)
	}
}
