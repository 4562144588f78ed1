package memory_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestMemoryConformance(t *testing.T) {
	for name, max := range map[string]int{"": 0, "unbounded": -1, "small": 20_000} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
				return backendtesting.NewMemory(t, memory.Config{Now: now, MaxKeys: max})
			},
				backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](), backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](),
				backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](), backendtest.Require[backend.Sealer](), backendtest.Require[control.Publisher](),
				backendtest.Require[control.Clock](),
			)
		})
	}
}

func TestMemoryAllocations(t *testing.T) {
	limits := []limit.Limit{
		limit.Fixed(1<<40, time.Hour), limit.Sliding(1<<40, time.Hour, time.Minute), limit.TokenBucket(1<<40, time.Hour, 1<<40),
		limit.Fixed(1<<40, time.Hour).Staggered(),
	}
	var none backend.Result
	for n := 1; n <= len(limits); n++ {
		for _, rotate := range limits[:n] { // each of them first
			c := backendtesting.NewClock()
			m := backendtesting.NewMemory(t, memory.Config{Now: c.Now})
			policy := limit.Policy{Name: "p", Limits: append([]limit.Limit{rotate}, without(limits[:n], rotate)...)}
			full := limit.Policy{Name: "p", Limits: append([]limit.Limit(nil), policy.Limits...)}
			for i := range full.Limits {
				full.Limits[i].Max, full.Limits[i].Burst = 1, min(full.Limits[i].Burst, 1)
			}
			ctx, cancel := context.WithCancel(context.Background())
			request := backend.Request{Key: "alice", Policy: &policy, Cost: 1}
			denied := backend.Request{Key: "bob", Policy: &full, Cost: 1}
			pin := func(what string, allowed bool, call func() (backend.Result, error)) {
				t.Helper()
				got := testing.AllocsPerRun(200, func() {
					c.Step(time.Second) // over boundaries of sub-buckets, too
					result, err := call()
					if err != nil || result.Allowed != allowed {
						t.Fatalf("%s: allowed %t, %v", what, result.Allowed, err)
					}
					none = result
				})
				if got != 0 && !backendtesting.Raced {
					t.Errorf("%d limits, %s first: %s allocates %g times", n, rotate, what, got)
				}
			}
			warm := func(req backend.Request) { // to the full size of a sliding limit
				for range 121 {
					c.Step(30 * time.Second)
					if _, err := m.Take(ctx, req); err != nil {
						t.Fatal(err)
					}
				}
			}
			warm(request)
			pin("an admitted take", true, func() (backend.Result, error) { return m.Take(ctx, request) })
			pin("a peek", true, func() (backend.Result, error) { return m.Peek(ctx, request) })
			c.Set(30 * time.Hour)
			warm(denied)
			c.Set(40 * time.Hour)
			if _, err := m.Take(ctx, denied); err != nil {
				t.Fatal(err)
			}
			pin("a denied take", false, func() (backend.Result, error) { return m.Take(ctx, denied) })
			pin("a denying peek", false, func() (backend.Result, error) { return m.Peek(ctx, denied) })
			cancel()
		}
	}
	_ = none
}

func without(limits []limit.Limit, not limit.Limit) []limit.Limit {
	var rest []limit.Limit
	for _, l := range limits {
		if l != not {
			rest = append(rest, l)
		}
	}
	return rest
}

// TestMemoryManyKeys meets ten million random keys, a tenth of that outside the long tier, first with windows that end, then
// with windows that don't.
func TestMemoryManyKeys(t *testing.T) {
	const bound = 1 << 17
	for _, part := range []struct {
		name   string
		window time.Duration
		keys   int
	}{{"windows end", time.Millisecond, 9_000_000}, {"windows stay", 24 * time.Hour, 1_000_000}} {
		t.Run(part.name, func(t *testing.T) {
			keys, window := testtier.Size(part.keys/10, part.keys), part.window
			before := backendtesting.Heap()
			c := backendtesting.NewClock()
			m := backendtesting.NewMemory(t, memory.Config{MaxKeys: bound, Now: c.Now})
			policy := limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, window)}}
			most := 0
			const rounds = 20
			for round := range rounds {
				var wg sync.WaitGroup
				for worker := range 2 {
					wg.Go(func() {
						random := rand.New(rand.NewPCG(uint64(round), uint64(worker)))
						var raw [8]byte
						var text [16]byte
						for i := range keys / rounds / 2 {
							if i%16 == 0 {
								c.Step(time.Microsecond)
							}
							binary.LittleEndian.PutUint64(raw[:], random.Uint64())
							hex.Encode(text[:], raw[:])
							if _, err := m.Take(context.Background(), backend.Request{Key: string(text[:]), Policy: &policy, Cost: 1}); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				most = max(most, m.Len())
			}
			grown := backendtesting.Heap() - before
			t.Logf("at most %d keys, %d bytes each", most, grown/int64(m.Len()))
			if most > bound+bound/64 {
				t.Errorf("%d keys are remembered, the bound is %d", most, bound)
			}
			if window == time.Millisecond && most > bound/3 {
				t.Errorf("%d keys are remembered, of some thousands that live at a time", most)
			}
			if limit := int64(bound) * 400; grown > limit {
				t.Errorf("the heap has grown by %d bytes, want at most %d", grown, limit)
			}
			runtime.KeepAlive(m)
		})
	}
}

// TestMemoryBound: the bound holds for any size, also the smallest.
func TestMemoryBound(t *testing.T) {
	policy := limit.Policy{Limits: []limit.Limit{limit.PerHour(10)}}
	for _, bound := range []int{1, 2, 17, 63, 64, 1000, 5000} {
		m := backendtesting.NewMemory(t, memory.Config{MaxKeys: bound})
		for i := range 3 * bound {
			if _, err := m.Take(context.Background(), backend.Request{Key: fmt.Sprint(i), Policy: &policy, Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if n := m.Len(); n > bound+bound/10 || n < bound/2 {
			t.Errorf("%d keys are remembered with MaxKeys %d", n, bound)
		}
	}
}

// TestMemoryEviction: a decision that more may have been admitted before is Bounded, and Exact as soon as that is over.
func TestMemoryEviction(t *testing.T) {
	c := backendtesting.NewClock()
	m := backendtesting.NewMemory(t, memory.Config{MaxKeys: 32, Now: c.Now})
	policy := limit.Policy{Limits: []limit.Limit{limit.Fixed(1, time.Minute)}}
	take := func(key string) backend.Result {
		t.Helper()
		result, err := m.Take(context.Background(), backend.Request{Key: key, Policy: &policy, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	for i := range 32 {
		if r := take(fmt.Sprint(i)); r.Guarantee != backend.Exact || r.Cause != nil {
			t.Fatalf("with room: %s, %v", r.Guarantee, r.Cause)
		}
	}
	c.Set(10 * time.Second)
	take("one too many") // somebody is forgotten
	twice := 0
	for i := range 32 {
		r := take(fmt.Sprint(i))
		if !r.Allowed {
			continue
		}
		twice++
		if r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrEvicted) {
			t.Errorf("admitted twice in a window: %s, %v", r.Guarantee, r.Cause)
		}
	}
	if twice == 0 {
		t.Fatal("33 keys fit into a memory of 32")
	}
	peeked, err := m.Peek(context.Background(), backend.Request{Key: "unknown", Policy: &policy, Cost: 1})
	if err != nil || peeked.Guarantee != backend.Bounded {
		t.Errorf("a peek at a key that may be forgotten: %s, %v", peeked.Guarantee, err)
	}
	loaded, err := m.Load(context.Background(), backend.Request{Key: "unknown", Policy: &policy})
	if err != nil || !errors.Is(loaded.Lacks, backend.ErrEvicted) {
		t.Errorf("a load of such a key lacks %v, %v", loaded.Lacks, err)
	}
	c.Set(3 * time.Minute) // what was lost has ended
	if loaded, err = m.Load(context.Background(), backend.Request{Key: "unknown", Policy: &policy}); err != nil || loaded.Lacks != nil {
		t.Errorf("later a load lacks %v, %v", loaded.Lacks, err)
	}
	for i := range 8 { // so few that among those it looks at there is one that is over
		if r := take(fmt.Sprint(i)); !r.Allowed || r.Guarantee != backend.Exact || r.Cause != nil {
			t.Errorf("later: allowed %t, %s, %v", r.Allowed, r.Guarantee, r.Cause)
		}
	}
}

// TestMemoryForgetsWhatEndsSoonest: a crowd of short windows doesn't drive out the long ones.
func TestMemoryForgetsWhatEndsSoonest(t *testing.T) {
	c := backendtesting.NewClock()
	m := backendtesting.NewMemory(t, memory.Config{MaxKeys: 40, Now: c.Now})
	long := &limit.Policy{Name: "long", Limits: []limit.Limit{limit.Fixed(1, 24*time.Hour)}}
	short := &limit.Policy{Name: "short", Limits: []limit.Limit{limit.Fixed(1, time.Minute)}}
	const longs = 10
	for i := range longs {
		backendtesting.MustTake(t, m, backend.Request{Key: fmt.Sprint(i), Policy: long, Cost: 1})
	}
	for i := range 2000 {
		c.Step(10 * time.Millisecond)
		backendtesting.MustTake(t, m, backend.Request{Key: fmt.Sprint(i), Policy: short, Cost: 1})
	}
	for i := range longs {
		if r := backendtesting.MustTake(t, m, backend.Request{Key: fmt.Sprint(i), Policy: long, Cost: 1}); r.Allowed {
			t.Errorf("key %d was forgotten with a day to go, for others with a minute", i)
		}
	}
}

// TestMemoryKeepsNothing: neither of the caller's request, nor after Close.
func TestMemoryKeepsNothing(t *testing.T) {
	m := backendtesting.NewMemory(t, memory.Config{})
	policy := limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(1)}}
	bytes := []byte("alice")
	backendtesting.MustTake(t, m, backend.Request{Key: unsafe.String(&bytes[0], len(bytes)), Policy: &policy, Cost: 1})
	copy(bytes, "mangl") // as a server does that reuses its buffers
	if r := backendtesting.MustTake(t, m, backend.Request{Key: "alice", Policy: &policy, Cost: 1}); r.Allowed {
		t.Error("the key was kept in the caller's memory")
	}
	if m.Len() != 1 {
		t.Errorf("%d keys, want 1", m.Len())
	}
	if err := m.Close(); err != nil || m.Len() != 0 {
		t.Errorf("after Close: %d keys, %v", m.Len(), err)
	}
}

// TestMemoryHonesty: over random takes in a memory that is far too small, what is Exact never admits too much.
func TestMemoryHonesty(t *testing.T) {
	type span struct {
		key    string
		limit  int
		window int64
	}
	policy := limit.Policy{Limits: []limit.Limit{limit.Fixed(3, time.Minute).Aligned(), limit.Fixed(7, 5*time.Minute).Aligned()}}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		c := backendtesting.NewClock()
		m := backendtesting.NewMemory(t, memory.Config{MaxKeys: 100, Now: c.Now})
		admitted := make(map[span]int64)
		exact, bounded, above := 0, 0, 0
		for i := range 20_000 {
			crowd := 60 // fits
			if i/2000%2 == 1 {
				crowd = 400
			}
			c.Step(time.Duration(random.IntN(200)) * time.Millisecond)
			key := fmt.Sprint(random.IntN(crowd))
			r, err := m.Take(context.Background(), backend.Request{Key: key, Policy: &policy, Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			if r.Guarantee == backend.Exact {
				exact++
			} else {
				bounded++
			}
			if !r.Allowed {
				continue
			}
			for j, l := range policy.Limits {
				s := span{key, j, r.Now / l.Window.Microseconds()}
				admitted[s]++
				if admitted[s] > l.Max {
					above++
					if r.Guarantee == backend.Exact {
						t.Fatalf("seed %d, take %d: exact, but the window of %s has admitted %d", seed, i, l, admitted[s])
					}
				}
			}
		}
		if exact == 0 || bounded == 0 || above == 0 {
			t.Errorf("seed %d: %d exact, %d bounded, %d above the limit: the test tests nothing", seed, exact, bounded, above)
		}
	}
}

// TestMemoryParallel is for the race detector: every call at once, on few keys, in a memory that evicts.
func TestMemoryParallel(t *testing.T) {
	m := backendtesting.NewMemory(t, memory.Config{MaxKeys: 50})
	policies := []*limit.Policy{
		{Name: "a", Limits: []limit.Limit{limit.Fixed(100, time.Millisecond), limit.Sliding(1000, time.Second, 10*time.Millisecond)}},
		{Name: "b", Limits: []limit.Limit{limit.TokenBucket(1000, time.Second, 100), limit.Fixed(50, time.Second).Staggered()}},
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 4))
			var receipt state.Receipt
			var floor state.State
			for range 5000 {
				req := backend.Request{Key: fmt.Sprint(random.IntN(100)), Policy: policies[random.IntN(2)], Cost: 1}
				var err error
				switch random.IntN(8) {
				case 0:
					_, err = m.Peek(ctx, req)
				case 1:
					err = m.Refund(ctx, req, receipt, 1)
				case 2:
					err = m.Reset(ctx, req)
				case 3:
					var snapshot backend.Snapshot
					snapshot, err = m.Load(ctx, req)
					floor = snapshot.State
				case 4:
					err = m.Seed(ctx, req, floor)
				default:
					if random.IntN(2) == 0 {
						req.Floor = &floor
					}
					var r backend.Result
					r, err = m.Take(ctx, req)
					receipt = r.Receipt()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := m.Len(); n > 60 {
		t.Errorf("%d keys are remembered with MaxKeys 50", n)
	}
}
