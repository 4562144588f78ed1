package router_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "5") // most of them wait for servers; the command line may say otherwise
	logging.Disable()                  // go-redis prints a line for every connection that is refused
	// go-redis looks for a lost server once a second, and so notices Close within one.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var fivePerMinute = limit.Policy{Name: "t", Limits: []limit.Limit{limit.PerMinute(5)}}

func request(key string) backend.Request {
	return backend.Request{Key: key, Policy: &fivePerMinute, Cost: 1}
}

// open makes a router and closes it with the test.
func open(t testing.TB, groups []router.NodeGroup, cfg router.Config) *router.Router {
	t.Helper()
	r, err := router.New(groups, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// keyOf returns the n-th key that a group owns.
func keyOf(r *router.Router, group string, n int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("user:%d", i); r.Owner(key) == group {
			if n == 0 {
				return key
			}
			n--
		}
	}
}

// await polls until ok holds.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func kind(err error) backend.Kind {
	var e *backend.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

func newMemory(t testing.TB) *memory.Memory {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// fake is a node in memory with scripted failures and delays. It sends no heartbeats; beating does.
type fake struct {
	*counts
}

type counts struct {
	store *memory.Memory // several fakes may share one: a primary and replicas that never lag

	mu    sync.Mutex // guards what follows
	delay time.Duration
	err   error
	calls map[string]int
	beat  control.Heartbeat
	ahead time.Duration // how far this node's clock is ahead
	shut  bool
}

func newFake(store *memory.Memory) fake {
	return fake{&counts{store: store, calls: make(map[string]int)}}
}

// beating is a fake that answers heartbeats.
type beating struct{ fake }

func newReplica(store *memory.Memory) beating {
	f := newFake(store)
	f.beat = control.Heartbeat{RunID: "a", LinkUp: true}
	return beating{f}
}

func newPrimary(store *memory.Memory) beating {
	f := newFake(store)
	f.beat = control.Heartbeat{RunID: "a", Primary: true}
	return beating{f}
}

// set changes the fake under its lock.
func (c *counts) set(change func(c *counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

func (c *counts) called(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[op]
}

func (c *counts) enter(ctx context.Context, op string) error {
	c.mu.Lock()
	delay, err := c.delay, c.err
	c.calls[op]++
	c.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return &backend.Error{Op: op, Node: "fake", Kind: backend.Interrupted, Err: ctx.Err()}
		}
	}
	return err
}

func (f fake) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := f.enter(ctx, "take"); err != nil {
		return backend.Result{}, err
	}
	return f.store.Take(ctx, req)
}

func (f fake) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := f.enter(ctx, "load"); err != nil {
		return backend.Snapshot{}, err
	}
	snapshot, err := f.store.Load(ctx, req)
	snapshot.Now = f.NowMicros()
	return snapshot, err
}

func (f fake) NowMicros() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.store.NowMicros() + f.ahead.Microseconds()
}

func (f fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut {
		return errors.New("closed twice")
	}
	f.shut = true
	return nil
}

func (b beating) Heartbeat(ctx context.Context) (control.Heartbeat, error) {
	if err := b.enter(ctx, "beat"); err != nil {
		return control.Heartbeat{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.beat, nil
}

func unavailable() error {
	return &backend.Error{Op: "take", Node: "fake", Kind: backend.Unavailable, Err: errors.New("connection refused")}
}

// log keeps events.
type log struct {
	mu     sync.Mutex
	events []router.Event
}

func (l *log) add(e router.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *log) all() []router.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// kinds returns what happened to a node, in order.
func (l *log) kinds(group, node string) []router.EventKind {
	var kinds []router.EventKind
	for _, e := range l.all() {
		if e.Group == group && e.Node == node {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

func (l *log) has(group, node string, kind router.EventKind) bool {
	return slices.Contains(l.kinds(group, node), kind)
}
