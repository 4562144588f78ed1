package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// place is a server that many processes count at, over a network that is slow and may lose what is sent. It decides by the
// algebra, at the moment that a process says: like Redis, whose clock every process reads for itself.
type place struct {
	mu     sync.Mutex // guards states
	states map[string]*state.State
}

func (p *place) used(key string, policy *limit.Policy) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.states[key]
	if s == nil {
		return 0
	}
	v := s.Peek(policy, state.At{Micros: time.Now().UnixMicro()}, 1)
	return policy.Limits[0].Quota() - v.Binding().Remaining
}

// way is how one process reaches the place.
type way struct {
	*place
	random *rand.Rand
	mu     sync.Mutex    // guards random, cut
	lag    time.Duration // by which the process's idea of the place's time is behind
	loses  float64       // of requests, and as many of replies
	cut    bool          // the process is dead
}

const maxLag = 9 * time.Millisecond

var errLost = errors.New("lost on the way")

// travel takes a message over the network. It is on its way for longer than the process's clock lags.
func (w *way) travel() error {
	w.mu.Lock()
	lost, slow, jitter := w.cut || w.random.Float64() < w.loses, w.random.IntN(20) == 0, w.random.IntN(15)
	w.mu.Unlock()
	d := w.lag + time.Millisecond + time.Duration(jitter)*time.Millisecond
	if slow {
		d += 150 * time.Millisecond
	}
	time.Sleep(d)
	if lost {
		return errLost
	}
	return nil
}

func (w *way) do(key string, charges bool, change func(*state.State, state.At)) error {
	at := state.At{Micros: time.Now().Add(-w.lag).UnixMicro()}
	if err := w.travel(); err != nil {
		return &backend.Error{Op: "take", Kind: backend.Unavailable, MayHaveCharged: charges, Err: err}
	}
	w.place.mu.Lock()
	s := w.states[key]
	if s == nil {
		s = new(state.State)
		w.states[key] = s
	}
	change(s, at)
	w.place.mu.Unlock()
	if err := w.travel(); err != nil {
		return &backend.Error{Op: "take", Kind: backend.Unavailable, MayHaveCharged: charges, Err: err}
	}
	return nil
}

func (w *way) Take(_ context.Context, req backend.Request) (r backend.Result, err error) {
	err = w.do(req.Key, true, func(s *state.State, at state.At) {
		if req.Floor != nil {
			s.Join(req.Policy, at, req.Floor)
		}
		r = backend.Result{Verdict: s.Take(req.Policy, at, req.Cost), Now: at.Micros, State: s.Clone(), Source: backend.Primary}
	})
	if err != nil {
		return backend.Result{}, err
	}
	return r, nil
}

func (w *way) Refund(_ context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return w.do(req.Key, true, func(s *state.State, at state.At) { s.Refund(at, &receipt, amount) })
}

func (w *way) Close() error { return nil }

// ledger is what was admitted and not given back: what a promise is about.
type ledger struct {
	mu       sync.Mutex // guards all below
	limit    limit.Limit
	held     map[int64]int64 // by the end of the window or the sub-bucket, Unix microseconds
	level    float64         // of a bucket that takes everything, and leaks at the rate
	last     int64
	over     []string
	admitted int64
	sources  map[backend.Source]int
}

// admit counts an admission, and says where it was one too many.
func (l *ledger) admit(r *backend.Result, asked time.Time, cost, beyond int64) (slot int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().UnixMicro()
	l.admitted += cost
	l.sources[r.Source]++
	if r.Source != backend.Leased {
		now = r.Now // it was decided earlier, and the reply was under way
	}
	receipt := r.Receipt()
	slot, _, _ = receipt.Charge(0)
	spendable := slot
	if l.limit.Algorithm == limit.SlidingWindow {
		spendable -= (l.limit.Window - l.limit.Precision).Microseconds()
	}
	if r.Source == backend.Leased && l.limit.Algorithm != limit.Bucket && now >= spendable {
		l.over = append(l.over, fmt.Sprintf("spent %d us after its time", now-spendable))
	}
	if late := asked.Add(-maxLag).UnixMicro() - spendable; l.limit.Algorithm != limit.Bucket && late >= 0 {
		l.over = append(l.over, fmt.Sprintf("asked for %d us after the time of what it was charged to", late))
	}
	l.held[slot] += cost
	switch l.limit.Algorithm {
	case limit.FixedWindow:
		if l.held[slot] > l.limit.Max {
			l.over = append(l.over, fmt.Sprintf("%d of %d in a window", l.held[slot], l.limit.Max))
		}
	case limit.SlidingWindow:
		width, sum := l.limit.Precision.Microseconds(), int64(0)
		for end := slot; end > slot-l.limit.Window.Microseconds(); end -= width {
			sum += l.held[end]
		}
		if sum > l.limit.Max {
			l.over = append(l.over, fmt.Sprintf("%d of %d in a window", sum, l.limit.Max))
		}
	case limit.Bucket:
		rate := float64(l.limit.Max) / float64(l.limit.Window.Microseconds())
		l.level = max(0, l.level-rate*float64(max(0, now-l.last))) + float64(cost)
		l.last = max(l.last, now)
		if l.level > float64(l.limit.Burst+beyond)+1e-6 {
			l.over = append(l.over, fmt.Sprintf("%.1f of %d and %d leased in a bucket", l.level, l.limit.Burst, beyond))
		}
	}
	return slot
}

func (l *ledger) giveBack(slot, amount int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[slot] -= amount
	l.admitted -= amount
}

// TestLeasesNeverAdmitTooMuch is promise P6: many processes with leases, slow and lossy ways, clocks that lag, callers who
// give up, processes that close or die, and no window with more than its Max; a bucket with no more than what was leased.
func TestLeasesNeverAdmitTooMuch(t *testing.T) {
	const seeds = 60
	limits := []limit.Limit{
		limit.Fixed(300, time.Second), limit.Fixed(300, time.Second).Aligned(), limit.Sliding(400, 2*time.Second, 500*time.Millisecond),
		limit.TokenBucket(200, time.Second, 200),
	}
	sources := make(map[backend.Source]int)
	for seed := range seeds {
		l := limits[seed%len(limits)]
		synctest.Test(t, func(t *testing.T) {
			book := playLeases(t, uint64(seed), l)
			for source, n := range book.sources {
				sources[source] += n
			}
			for _, over := range book.over[:min(len(book.over), 5)] {
				t.Errorf("seed %d, %s: %s", seed, l, over)
			}
		})
	}
	if sources[backend.Leased] < 1000 || sources[backend.Primary] < 1000 {
		t.Errorf("decided by %v: too few of a kind", sources)
	}
}

func playLeases(t *testing.T, seed uint64, l limit.Limit) *ledger {
	const processes, most = 4, 24
	policy := limit.Policy{Name: "p", Limits: []limit.Limit{l}}
	there := &place{states: make(map[string]*state.State)}
	book := &ledger{limit: l, held: make(map[int64]int64), sources: make(map[backend.Source]int)}
	end := time.Now().Add(8 * time.Second)
	var all sync.WaitGroup
	for p := range processes {
		random := rand.New(rand.NewPCG(seed, uint64(p)))
		cfg := lease.Config{
			Processes: 1 + random.IntN(processes), Batch: 1 + random.Int64N(most), Steady: random.IntN(2) == 0,
			Life: time.Duration(1+random.IntN(3000)) * time.Millisecond,
		}
		lag, loses := time.Duration(random.IntN(4))*maxLag/3, []float64{0, 0.02}[random.IntN(2)]
		all.Go(func() {
			for life := uint64(0); time.Now().Before(end); life++ {
				w := &way{place: there, random: rand.New(rand.NewPCG(seed, 100+life)), lag: lag, loses: loses}
				liveOnce(t, w, cfg, policy, book, rand.New(rand.NewPCG(seed, 1000*uint64(p)+life)))
			}
		})
	}
	all.Wait()
	return book
}

// liveOnce is the life of a process: some callers, and then it closes or dies.
func liveOnce(t *testing.T, w *way, cfg lease.Config, policy limit.Policy, book *ledger, random *rand.Rand) {
	ls := backendtesting.NewLease(t, w, cfg)
	end := time.Now().Add(time.Duration(500+random.IntN(4000)) * time.Millisecond)
	refunds := policy.Limits[0].Algorithm != limit.Bucket // what a bucket gives back has no bound as simple
	beyond := int64(4 * 3 * 200)                          // leases out at once, at most: each is at most half of what remains
	if policy.Limits[0].Algorithm == limit.Bucket {
		beyond = 4 * policy.Limits[0].Burst / 2
	}
	var callers sync.WaitGroup
	for caller := range 4 {
		random := rand.New(rand.NewPCG(random.Uint64(), uint64(caller)))
		callers.Go(func() {
			for time.Now().Before(end) {
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
				}
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if random.IntN(5) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(1+random.IntN(40))*time.Millisecond)
				}
				cost := 1 + random.Int64N(3)
				req := backend.Request{Key: "key", Policy: &policy, Cost: cost}
				asked := time.Now()
				r, err := ls.Take(ctx, req)
				cancel()
				if err != nil || !r.Allowed {
					time.Sleep(time.Millisecond)
					continue
				}
				slot := book.admit(&r, asked, cost, beyond)
				if refunds && random.IntN(10) == 0 {
					book.giveBack(slot, cost) // from here on others may have it
					_ = ls.Refund(context.Background(), req, r.Receipt(), cost)
				}
				time.Sleep(time.Duration(random.IntN(8)) * time.Millisecond)
			}
		})
	}
	callers.Wait()
	if random.IntN(2) == 0 {
		w.mu.Lock()
		w.cut = true
		w.mu.Unlock()
	}
	if err := ls.Close(); err != nil {
		t.Error(err)
	}
}

// TestLeaseGivesBack: whatever is charged and not admitted is stranded in some lease, each process has at most its batch
// less one, and after Close it is back.
func TestLeaseGivesBack(t *testing.T) {
	const processes, batch = 5, 20
	for _, l := range []limit.Limit{limit.Fixed(100_000, time.Hour), limit.Sliding(100_000, time.Hour, time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			policy := limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			there := &place{states: make(map[string]*state.State)}
			var leases []*lease.Lease
			for p := range processes {
				w := &way{place: there, random: rand.New(rand.NewPCG(7, uint64(p)))}
				leases = append(leases, backendtesting.NewLease(t, w, lease.Config{Batch: batch, Steady: true, Life: 10 * time.Minute}))
			}
			var admitted int64
			for range 200 {
				for p, ls := range leases {
					r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: &policy, Cost: 1 + int64(p)})
					if err != nil || !r.Allowed {
						t.Fatalf("allowed %t, %v", r.Allowed, err)
					}
					admitted += 1 + int64(p)
				}
				time.Sleep(400 * time.Millisecond) // what is on its way back arrives
				var stranded int64
				for _, ls := range leases {
					stranded += ls.Stats().Stranded
				}
				if used := there.used("key", &policy); used != admitted+stranded {
					t.Fatalf("%d charged: %d admitted, %d stranded", used, admitted, stranded)
				}
				if stranded > processes*(batch-1) {
					t.Fatalf("%d stranded in %d processes with a batch of %d", stranded, processes, batch)
				}
			}
			if s := leases[0].Stats(); s.Leased < 100 {
				t.Errorf("stats %+v: hardly anything was leased", s)
			}
			quiet, rest := leases[0], leases[1:]
			time.Sleep(12 * time.Minute)
			synctest.Wait()
			if s := quiet.Stats(); s.Stranded != 0 || s.Returned == 0 || s.Lost != 0 {
				t.Errorf("after the lease's life: %+v", s)
			}
			for _, ls := range append(rest, quiet) {
				if err := ls.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if used := there.used("key", &policy); used != admitted {
				t.Errorf("after Close %d are charged, and %d were admitted", used, admitted)
			}
		})
	}
}
