package router_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// plant is nodes in memory that outlive the routers which use them: servers, by address.
type plant struct {
	mu    sync.Mutex // guards nodes
	nodes map[string]*machine
}

// machine is a server of a plant.
type machine struct {
	*memory.Memory
	down  atomic.Bool
	hangs atomic.Bool // it answers no load
	mute  atomic.Bool // it keeps no announcement
	lacks atomic.Bool // it has lost counts
	calls atomic.Int64
	looks atomic.Int64                  // at its announcement, that were answered
	shown atomic.Pointer[func()]        // is called once, with an announcement that is about to be returned
	fault atomic.Pointer[backend.Error] // what a take returns
}

var errDown = errors.New("down")

func (m *machine) err() error {
	m.calls.Add(1)
	if m.down.Load() {
		return &backend.Error{Op: "take", Kind: backend.Unavailable, Err: errDown}
	}
	return nil
}

func (m *machine) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := m.fault.Load(); err != nil {
		return backend.Result{}, err
	}
	if err := m.err(); err != nil {
		return backend.Result{}, err
	}
	return m.Memory.Take(ctx, req)
}

func (m *machine) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := m.err(); err != nil {
		return backend.Snapshot{}, err
	}
	return m.Memory.Seal(ctx, req)
}

func (m *machine) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if m.hangs.Load() {
		<-ctx.Done()
		return backend.Snapshot{}, &backend.Error{Op: "load", Kind: backend.Interrupted, Err: ctx.Err()}
	}
	if err := m.err(); err != nil {
		return backend.Snapshot{}, err
	}
	loaded, err := m.Memory.Load(ctx, req)
	if m.lacks.Load() {
		loaded.Lacks = backend.ErrCountsLost
	}
	return loaded, err
}

// Peek returns the state, too, as servers do.
func (m *machine) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	loaded, err := m.Load(ctx, req)
	return loaded.Peek(&req), err
}

func (m *machine) Doubt(backend.Request) error {
	if m.lacks.Load() {
		return backend.ErrCountsLost
	}
	return nil
}

func (m *machine) Published(ctx context.Context) (control.Announcement, error) {
	if m.down.Load() {
		return control.Announcement{}, &backend.Error{Op: "published", Kind: backend.Unavailable, Err: errDown}
	}
	if m.mute.Load() {
		return control.Announcement{}, nil
	}
	defer m.looks.Add(1)
	there, err := m.Memory.Published(ctx)
	if call := m.shown.Swap(nil); call != nil {
		(*call)()
	}
	return there, err
}

func (m *machine) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	if m.down.Load() {
		return control.Announcement{}, &backend.Error{Op: "publish", Kind: backend.Unavailable, Err: errDown}
	}
	if m.mute.Load() {
		return n, nil
	}
	return m.Memory.Publish(ctx, n)
}

func (m *machine) Close() error { return nil }

func newPlant() *plant { return &plant{nodes: make(map[string]*machine)} }

func (p *plant) node(address string) (backend.Backend, error) { return p.machine(address), nil }

func (p *plant) machine(address string) *machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.nodes[address]
	if m == nil {
		mem, err := memory.New(memory.Config{})
		if err != nil {
			panic(err)
		}
		m = &machine{Memory: mem}
		p.nodes[address] = m
	}
	return m
}

// has reports whether a node was made for an address.
func (p *plant) has(address string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[address] != nil
}

// restart makes a machine lose all it had.
func (p *plant) restart(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mem, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	p.nodes[address].Memory = mem
}

// topo is a topology of groups g1 to gN, each of one node. It is a baseline, unless another one is put before it.
func topo(epoch uint64, groups ...int) router.Topology {
	t := router.Topology{Epoch: epoch, Baseline: epoch > 1}
	for _, g := range groups {
		t.Groups = append(t.Groups, router.Group{Name: fmt.Sprintf("g%d", g), Primary: fmt.Sprintf("10.0.0.%d:6379", g)})
	}
	return t
}

// file is the text of topo(epoch, group).
func file(group int, epoch uint64) []byte {
	return fmt.Appendf(nil, `{"epoch": %d, "groups": [{"name": "g%d", "primary": "10.0.0.%d:6379"}]}`, epoch, group, group)
}

func (p *plant) open(t testing.TB, topology router.Topology, cfg router.Config) *router.Router {
	t.Helper()
	cfg.Node = p.node
	if cfg.Backend.Timeout == 0 {
		cfg.Backend.Timeout = 5 * time.Second // the machine may be busy
	}
	if cfg.TopologyKeys == nil && cfg.AllowedAddresses == nil {
		cfg.AllowedAddresses = []string{"10.0.0.0/24"}
	}
	r, err := router.Open(topology, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func update(t testing.TB, r *router.Router, topology router.Topology) {
	t.Helper()
	if err := r.Update(topology); err != nil {
		t.Fatal(err)
	}
}

// moved returns a key that changes its owner between two topologies.
func moved(t testing.TB, p *plant, from, to router.Topology) (key string, old, new *machine) {
	t.Helper()
	from.Epoch, to.Epoch = 0, 0
	a, b := p.open(t, from, router.Config{}), p.open(t, to, router.Config{})
	for i := 0; ; i++ {
		key := fmt.Sprint("key", i)
		if x, y := a.Owner(key), b.Owner(key); x != y {
			return key, p.machine("10.0.0." + x[1:] + ":6379"), p.machine("10.0.0." + y[1:] + ":6379")
		}
	}
}

func takeN(t testing.TB, b backend.Backend, key string, p *limit.Policy, n int) (admitted int) {
	t.Helper()
	for range n {
		r, err := b.Take(context.Background(), backend.Request{Key: key, Policy: p, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.Guarantee != backend.Exact {
			t.Fatalf("%s: %v", r.Guarantee, r.Cause)
		}
		if r.Allowed {
			admitted++
		}
	}
	return admitted
}

var tenAnHour = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(10)}}

// TestUpdateHandsOver: a key takes its counts along to its new owner, for the price of three calls, once; and back.
func TestUpdateHandsOver(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1, 2, 3), router.Config{})
	key, old, new := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	if n := takeN(t, r, key, tenAnHour, 4); n != 4 {
		t.Fatal(n)
	}
	update(t, r, topo(2, 1, 2, 3, 4))
	oldCalls, newCalls := old.calls.Load(), new.calls.Load()
	if n := takeN(t, r, key, tenAnHour, 3); n != 3 {
		t.Errorf("%d of 3", n)
	}
	if o, n := old.calls.Load()-oldCalls, new.calls.Load()-newCalls; o != 1 || n != 4 {
		t.Errorf("%d calls of the old owner and %d of the new one, want 1 and 4", o, n)
	}
	update(t, r, topo(3, 1, 2, 3))
	if n := takeN(t, r, key, tenAnHour, 10); n != 3 {
		t.Errorf("back at the old owner %d are admitted, and 3 were left", n)
	}
	update(t, r, topo(4, 1, 2, 3, 4))
	if n := takeN(t, r, key, tenAnHour, 10); n != 0 {
		t.Errorf("forth again %d are admitted", n)
	}
	if got, want := r.Stats(), (router.Stats{Handovers: 3}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}

	update(t, r, topo(5, 1, 2, 3))
	for _, handed := range []bool{true, false} { // only the first call brings the counts along
		var trace backend.Trace
		if _, err := r.Take(t.Context(), backend.Request{Key: key, Policy: tenAnHour, Cost: 1, Trace: &trace}); err != nil {
			t.Fatal(err)
		}
		if trace.HandedOver != handed {
			t.Errorf("handed over %t, want %t", trace.HandedOver, handed)
		}
	}
}

// TestUpdateByOthers: a router that was not updated learns of a newer topology where a key has left it, and one that
// starts with the newer topology finds the counts by its Previous.
func TestUpdateByOthers(t *testing.T) {
	p := newPlant()
	key, _, _ := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	told, untold := p.open(t, topo(1, 1, 2, 3), router.Config{}), p.open(t, topo(1, 1, 2, 3), router.Config{})
	takeN(t, untold, key, tenAnHour, 4)
	update(t, told, topo(2, 1, 2, 3, 4))
	takeN(t, told, key, tenAnHour, 1)
	if n := takeN(t, untold, key, tenAnHour, 2); n != 2 || untold.Owner(key) != "g4" {
		t.Errorf("%d of 2, owner %s", n, untold.Owner(key))
	}
	if s := untold.Stats(); s.Redirects == 0 {
		t.Errorf("counted %+v, and it went after the key", s)
	}
	next := topo(3, 1, 2, 4)
	key, _, _ = moved(t, p, topo(2, 1, 2, 3, 4), next)
	takeN(t, told, key, tenAnHour, 4)
	next = after(next, topo(2, 1, 2, 3, 4), topo(1, 1, 2, 3))
	fresh := p.open(t, next, router.Config{})
	if n := takeN(t, fresh, key, tenAnHour, 10); n != 6 {
		t.Errorf("%d admitted by a process that starts, and 6 were left", n)
	}
	if n := takeN(t, told, key, tenAnHour, 10); n != 0 {
		t.Errorf("%d admitted by one that learns of it", n)
	}
}

// TestUpdateWithoutPreviousOwner: where the old owner is out of reach the key starts without its counts, and decisions say so.
func TestUpdateWithoutPreviousOwner(t *testing.T) {
	p := newPlant()
	aligned := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, 24*time.Hour).Aligned()}}
	key, old, _ := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	r := p.open(t, topo(1, 1, 2, 3), router.Config{})
	takeN(t, r, key, aligned, 4)
	old.down.Store(true)
	update(t, r, topo(2, 1, 2, 3, 4))
	req := backend.Request{Key: key, Policy: aligned, Cost: 1}
	result, err := r.Take(context.Background(), req)
	if err != nil || !result.Allowed || result.Guarantee != backend.Bounded || !errors.Is(result.Cause, backend.ErrNotHandedOver) ||
		!errors.Is(result.Cause, errDown) && !errors.Is(result.Cause, router.ErrBreakerOpen) {
		t.Fatalf("%+v, %v", result, err)
	}
	if got, want := r.Stats(), (router.Stats{Bounded: 1}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	old.down.Store(false)
	await(t, "the breaker closes", func() bool {
		result, err = r.Take(context.Background(), req)
		return err == nil && result.Guarantee == backend.Exact
	})
	if left := result.Binding().Remaining; left > 5 {
		t.Errorf("%d left once the old counts have come", left)
	}
}

// TestUpdateCharge: a charge follows the key, and brings along what the old owner counted.
func TestUpdateCharge(t *testing.T) {
	p, ctx := newPlant(), context.Background()
	key, _, _ := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	r, behind := p.open(t, topo(1, 1, 2, 3), router.Config{}), p.open(t, topo(1, 1, 2, 3), router.Config{})
	req := backend.Request{Key: key, Policy: tenAnHour, Cost: 4}
	taken, err := r.Take(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	receipt := taken.Receipt()
	update(t, r, topo(2, 1, 2, 3, 4))
	req.Cost = 3
	for i, want := range []int64{3, 0} {
		charged, err := r.Charge(ctx, req, receipt.Mark())
		if err != nil || !charged.Allowed || charged.Binding().Remaining != want || charged.Guarantee != backend.Exact {
			t.Errorf("charge %d: %d left, %s, %v", i, charged.Binding().Remaining, charged.Guarantee, err)
		}
	}
	update(t, behind, topo(2, 1, 2, 3, 4))
	if charged, err := behind.Charge(ctx, req, receipt.Mark()); err != nil || charged.Binding().Remaining != 0 {
		t.Errorf("by another process: %d left, %v", charged.Binding().Remaining, err)
	}
	for _, r := range []*router.Router{r, behind} {
		if v, err := r.Take(ctx, backend.Request{Key: key, Policy: tenAnHour, Cost: 1}); err != nil || v.Allowed {
			t.Errorf("13 of 10 are used, and a take is admitted: %v", err)
		}
	}
	if got := r.Stats().Handovers; got != 1 {
		t.Errorf("%d handovers, want 1", got)
	}
}

// TestUpdateRefund: what was charged at the old owner can be given back, and looked at, before and after the key has moved.
func TestUpdateRefund(t *testing.T) {
	p, ctx := newPlant(), context.Background()
	key, _, _ := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	r := p.open(t, topo(1, 1, 2, 3), router.Config{})
	req := backend.Request{Key: key, Policy: tenAnHour, Cost: 5}
	a, _ := r.Take(ctx, req)
	b, _ := r.Take(ctx, req)
	update(t, r, topo(2, 1, 2, 3, 4))
	remaining := func(want int64) {
		t.Helper()
		looked, err := r.Peek(ctx, backend.Request{Key: key, Policy: tenAnHour, Cost: 1})
		if left := looked.Binding().Remaining; err != nil || left != want {
			t.Errorf("%d left, want %d; %v", left, want, err)
		}
	}
	remaining(0)
	if err := r.Refund(ctx, req, a.Receipt(), 5); err != nil {
		t.Fatal(err)
	}
	remaining(5)
	if err := r.Refund(ctx, req, b.Receipt(), 2); err != nil {
		t.Fatal(err)
	}
	remaining(7)
	if err := r.Reset(ctx, req); err != nil {
		t.Fatal(err)
	}
	remaining(10)
}

// TestUpdateRefused: what can't be put in force changes nothing.
func TestUpdateRefused(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(5, 1, 2), router.Config{})
	for name, test := range map[string]struct {
		topology router.Topology
		want     error
	}{
		"older":          {topo(4, 1, 2, 3), router.ErrTopologyOld},
		"the same epoch": {topo(5, 1, 3), router.ErrTopologyConflict},
		"of two kinds":   {router.Topology{Epoch: 6, Groups: []router.Group{{Name: "g1", Primary: "h:1", Cluster: []string{"h:2"}}}}, nil},
		"empty":          {router.Topology{Epoch: 6}, nil},
	} {
		err := r.Update(test.topology)
		var bad *router.ConfigError
		if !errors.As(err, &bad) || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	swapped := topo(5, 2, 1)
	if err := r.Update(swapped); err != nil {
		t.Errorf("the same in another order: %v", err)
	}
	fixed, err := router.New([]router.NodeGroup{{Name: "g1", Primary: p.machine("10.0.0.8:6379")}}, router.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := fixed.Update(topo(1, 1)); !errors.Is(err, router.ErrNotSupported) {
		t.Errorf("a router made by New: %v", err)
	}
	_ = fixed.Close()
	_ = r.Close()
	if err := r.Update(topo(9, 1)); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestTopologyConflict: of two processes whose topologies differ under one epoch, the second makes no call until there is
// a newer one.
func TestTopologyConflict(t *testing.T) {
	p := newPlant()
	first := p.open(t, topo(3, 1, 2), router.Config{})
	posted := func() bool {
		n, err := p.machine("10.0.0.1:6379").Memory.Published(context.Background())
		return err == nil && n.Version == 3
	}
	await(t, "the first topology is published", posted)
	var events atomic.Int64
	second := p.open(t, topo(3, 1, 3), router.Config{OnEvent: func(e router.Event) {
		if e.Kind == router.TopologyRejected {
			events.Add(1)
		}
	}})
	req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
	await(t, "the second one stops", func() bool {
		_, err := second.Take(context.Background(), req)
		return errors.Is(err, router.ErrTopologyConflict)
	})
	await(t, "an event", func() bool { return events.Load() == 1 })
	if n := takeN(t, first, "k", tenAnHour, 1); n != 1 {
		t.Error("the first one doesn't go on")
	}
	update(t, second, topo(4, 1, 2))
	if n := takeN(t, second, "k", tenAnHour, 1); n != 1 {
		t.Error("not settled by a newer one")
	}
	await(t, "the first one follows", func() bool {
		_, err := first.Take(context.Background(), req)
		return err == nil && strings.Contains(fmt.Sprint(first.Nodes()), "g2")
	})
}

// TestWatchFile: a file that changes is put in force; one that can't be is reported.
func TestWatchFile(t *testing.T) {
	p := newPlant()
	path := filepath.Join(t.TempDir(), "groups.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	var rejected, changed atomic.Int64
	r := p.open(t, topo(1, 1), router.Config{OnEvent: func(e router.Event) {
		switch e.Kind {
		case router.TopologyRejected:
			rejected.Add(1)
		case router.TopologyChanged:
			changed.Add(1)
		}
	}})
	if err := r.WatchFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	write(`{"epoch": 1, "groups": [{"name": "g1", "primary": "10.0.0.1:6379"}]}`)
	if err := r.WatchFile(path); err != nil {
		t.Fatal(err)
	}
	write(`{"epoch": 2, "groups": [{"name": "g2", "primary": "10.0.0.2:6379"}]}`)
	await(t, "the file's topology", func() bool { return r.Owner("k") == "g2" && changed.Load() == 1 })
	write(`{"epoch": 3, "groups": [}`)
	await(t, "an event", func() bool { return rejected.Load() == 1 })
	write(`{"epoch": 3, "groups": [{"name": "g3", "primary": "10.0.0.3:6379"}]}`)
	await(t, "the fixed file's topology", func() bool { return r.Owner("k") == "g3" })
	write(`{"epoch": 2, "groups": [{"name": "g4", "primary": "10.0.0.4:6379"}]}`)
	await(t, "an event about a roll-back", func() bool { return rejected.Load() == 2 })
}

// TestDrain: nodes that no topology has any more are closed once their windows are over.
func TestDrain(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1, 2), router.Config{Drain: time.Millisecond, Settle: time.Millisecond, Heartbeat: 20 * time.Millisecond})
	update(t, r, topo(2, 2, 3))
	time.Sleep(2 * time.Millisecond)
	update(t, r, topo(3, 3))
	if got := fmt.Sprint(r.Nodes()); strings.Contains(got, "g1") || strings.Contains(got, "g2") || !strings.Contains(got, "g3") {
		t.Errorf("nodes %s", got)
	}
}

// TestReshardIsExact is promise P9 on real servers: 3 to 4 groups and back under load, from two processes of which one
// hears of it two seconds later, and no key above its Max. Without the handover there are many.
func TestReshardIsExact(t *testing.T) {
	t.Parallel()
	const keys, quota, callers = 300, 20, 8
	limits := map[string]limit.Limit{
		"fixed": limit.PerHour(quota), "sliding": limit.Sliding(quota, time.Hour, time.Minute),
		"bucket": limit.TokenBucket(1, 24*time.Hour, quota),
	}
	c := startCluster(t, 4, 0)
	three, four := c.topology, c.topology
	three.Epoch, three.Groups = 1, three.Groups[:3]
	for name, l := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := router.Config{Backend: redisbackend.Config{Prefix: name + ":"}}
			routers := [2]*router.Router{dial(t, three, cfg), dial(t, three, cfg)}
			policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			var admitted [keys]atomic.Int64
			var inexact, failed, total, sum atomic.Int64
			stop := make(chan struct{})
			var all sync.WaitGroup
			end := sync.OnceFunc(func() { close(stop); all.Wait() })
			defer end()
			for caller := range callers {
				all.Go(func() {
					random := rand.New(rand.NewPCG(9, uint64(caller)))
					for {
						select {
						case <-stop:
							return
						default:
						}
						k := random.IntN(keys)
						r, err := routers[caller%2].Take(context.Background(), backend.Request{Key: fmt.Sprint("k", k), Policy: policy, Cost: 1})
						total.Add(1)
						switch {
						case err != nil:
							failed.Add(1)
						case r.Guarantee != backend.Exact:
							inexact.Add(1)
						case r.Allowed:
							admitted[k].Add(1)
							sum.Add(1)
						}
						time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
					}
				})
			}
			change := func(topology router.Topology, epoch uint64) {
				topology.Epoch = epoch
				update(t, routers[epoch%2], topology)
				time.Sleep(time.Second)
				update(t, routers[(epoch+1)%2], topology)
				time.Sleep(300 * time.Millisecond)
			}
			eventually(t, time.Minute, "the keys are in use", func() bool { return sum.Load() > keys })
			change(four, 2)
			change(three, 3)
			eventually(t, time.Minute, "most of the quota is used", func() bool { return sum.Load() > keys*quota/2 })
			end()
			over := 0
			for k := range admitted {
				if admitted[k].Load() > quota {
					over++
				}
			}
			t.Logf("%d calls, %d admitted, %d keys above their Max, %d inexact, %d failed",
				total.Load(), sum.Load(), over, inexact.Load(), failed.Load())
			if over > 0 || failed.Load() > 0 || inexact.Load() > 0 {
				t.Error("want none above Max, none failed, and none inexact")
			}
		})
	}
}

// TestReshardWithoutHandover is what TestReshardIsExact is worth: routers that don't know that keys come from elsewhere
// admit them twice.
func TestReshardWithoutHandover(t *testing.T) {
	p := newPlant()
	over := 0
	for k := range 100 {
		key := fmt.Sprint("k", k)
		before, after := p.open(t, topo(0, 1, 2, 3), router.Config{}), p.open(t, topo(0, 1, 2, 3, 4), router.Config{})
		if takeN(t, before, key, tenAnHour, 10)+takeN(t, after, key, tenAnHour, 10) > 10 {
			over++
		}
		_, _ = before.Close(), after.Close()
	}
	if over < 10 {
		t.Errorf("%d of 100 keys were admitted twice", over)
	}
}

// TestStoppedRoutersPublishNothing: a process that is to be stopped doesn't win over the healthy ones at a server that has lost
// its notice, because it has read all of them before.
func TestStoppedRoutersPublishNothing(t *testing.T) {
	p, ctx := newPlant(), context.Background()
	healthy := p.open(t, topo(3, 1, 2, 3), router.Config{})
	has := func(g int, digest string) func() bool {
		return func() bool {
			n, err := p.machine(fmt.Sprintf("10.0.0.%d:6379", g)).Memory.Published(ctx)
			return err == nil && n.Version == 3 && n.Digest == digest
		}
	}
	good := topo(3, 1, 2, 3).Digest()
	for g := 1; g <= 3; g++ {
		await(t, "the healthy topology is published", has(g, good))
	}
	p.restart("10.0.0.2:6379")
	canary := p.open(t, topo(3, 1, 2, 4), router.Config{})
	req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
	await(t, "the canary stops", func() bool {
		_, err := canary.Take(ctx, req)
		return errors.Is(err, router.ErrTopologyConflict)
	})
	if _, err := healthy.Take(ctx, req); err != nil {
		t.Errorf("the healthy process: %v", err)
	}
}
