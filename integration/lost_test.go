//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// A verdict is a call that a server has decided.
type verdict struct {
	process    int
	begin, end time.Time
	admitted   bool
	used       int64 // of the limit, as the process knows it: its floor from then on
}

// A history is the replies to all processes of a contender, in the order of arrival.
type history struct {
	gate sync.RWMutex // held for reading by calls; while it is held for writing no call is under way

	mu     sync.Mutex // guards what follows
	all    []verdict
	total  int64       // admitted
	losses []time.Time // when each began
	lost   []time.Time // when each was over
}

func (h *history) add(v verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, v)
	if v.admitted {
		h.total++
	}
}

func (h *history) admitted() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// bound is what may be admitted above Max: after each loss, all that others are admitted before a process that holds the
// newest floor has called again. What was under way at either moment is among it.
func (h *history) bound() (sum int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, loss := range h.losses {
		newest := int64(-1)
		holders := make(map[int]bool)
		for _, v := range h.all {
			switch {
			case v.end.After(loss):
			case v.used > newest:
				newest, holders = v.used, map[int]bool{v.process: true}
			case v.used == newest:
				holders[v.process] = true
			}
		}
		again := time.Time{} // when the holder's call has ended
		for _, v := range h.all {
			if holders[v.process] && v.begin.After(h.lost[i]) && (again.IsZero() || v.end.Before(again)) {
				again = v.end
			}
		}
		for _, v := range h.all {
			if v.admitted && v.end.After(loss) && (again.IsZero() || v.begin.Before(again) && v.end != again) {
				sum++
			}
		}
	}
	return sum
}

// load lets every process call until ctx ends, each from one goroutine of its own.
func (h *history) load(ctx context.Context, c *contender, key string) *sync.WaitGroup {
	var running sync.WaitGroup
	for process := range c.processes {
		running.Go(func() {
			random := rand.New(rand.NewPCG(uint64(process), 1))
			for ctx.Err() == nil {
				h.call(c, process, key)
				time.Sleep(time.Duration(random.IntN(100*len(c.processes))) * time.Microsecond) // about 20,000 a second in all
			}
		})
	}
	return &running
}

func (h *history) call(c *contender, process int, key string) {
	h.gate.RLock()
	defer h.gate.RUnlock()
	v := verdict{process: process, begin: time.Now()}
	var err error
	if _, isOurs := c.processes[process].(*sluice); isOurs {
		var d throttler.Decision
		if d, err = c.decide(process, key); d.Source == backend.LocalDeny {
			return // without a call
		}
		v.admitted, v.used = d.Allowed, d.Limit.Max-d.Remaining
	} else {
		v.admitted, err = c.call(process, key)
	}
	if v.end = time.Now(); err == nil {
		h.add(v)
	}
}

// exhausted reports whether a server has denied every process since the last admission and the last loss. A process with
// a local view denies by itself, but asks all the same once a second.
func (h *history) exhausted(processes int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	denied := make(map[int]bool)
	for _, v := range slices.Backward(h.all) {
		if v.admitted || len(h.losses) > 0 && v.begin.Before(h.losses[len(h.losses)-1]) {
			break
		}
		if denied[v.process] = true; len(denied) == processes {
			return true
		}
	}
	return false
}

func (h *history) lose(hold bool, loss func()) {
	if hold {
		h.gate.Lock()
		defer h.gate.Unlock()
	}
	h.mu.Lock()
	h.losses = append(h.losses, time.Now())
	h.mu.Unlock()
	loss()
	h.mu.Lock()
	h.lost = append(h.lost, time.Now())
	h.mu.Unlock()
}

// lose plays losses under load: each time another `each` are admitted, or all processes are denied, what the server
// holds is lost. It returns what was admitted above Max, and the bound. With hold no call is under way at a loss.
func lose(t *testing.T, c *contender, key string, l limit.Limit, each int64, times int, hold bool, loss func()) (over, bound int64) {
	t.Helper()
	var h history
	ctx, stop := context.WithCancel(context.Background())
	running := h.load(ctx, c, key)
	defer running.Wait()
	defer stop()
	for range times {
		before := h.admitted()
		await(t, "enough are admitted, or no more", func() bool {
			return h.admitted()-before >= each || h.exhausted(len(c.processes))
		})
		h.lose(hold, loss)
	}
	await(t, "all are denied", func() bool { return h.exhausted(len(c.processes)) })
	stop()
	running.Wait()
	return h.admitted() - l.Max, h.bound()
}

// A pair is a primary with a replica, behind an address that follows the primary.
type pair struct {
	primary, replica *server
	*address
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{primary: startRedis(t), replica: startRedis(t)} // equals: neither restarts as a replica of the other
	p.replica.follow(t, p.primary)
	p.address = newAddress(t, p.primary.addr)
	p.replica.cutOff(t) // before the first write: a failover loses everything
	return p
}

// failOver kills the primary and promotes the replica, which knows nothing of what was written. The old primary comes
// back, empty, as the next replica, and is cut off before it takes over anything.
func (p *pair) failOver(t *testing.T) {
	t.Helper()
	p.primary.kill()
	p.replica.promote(t)
	p.move(p.replica.addr)
	p.primary, p.replica = p.replica, p.primary
	p.replica.restart()
	p.replica.cutOff(t)
}

var thousand = limit.PerHour(1000)

// eager routers have no breaker: a process whose breaker is open keeps its floor to itself for a while, and there would be
// more to admit for the others, within a larger bound.
var eager = router.Config{TripAfter: -1, Backend: patient}

// TestFailover loses all writes three times in one window of an hour.
func TestFailover(t *testing.T) {
	t.Parallel()
	const losses = 3
	failovers := func(t *testing.T, n int, floors bool, each int64) (c *contender, over, bound int64) {
		t.Helper()
		p := newPair(t)
		groups, _ := groupsOf(p.addr)
		c = ours(t, n, setup{groups: groups, policy: one(thousand), failure: throttler.FailClosed, floors: floors, router: eager})
		over, bound = lose(t, c, "user:1", thousand, each, losses, false, func() { p.failOver(t) })
		t.Logf("%d processes, floors %t, a failover after each %d: %d over, bound %d", n, floors, each, over, bound)
		return c, over, bound
	}
	var plain, ring figures // of a single process: more make no difference
	t.Run("others", func(t *testing.T) {
		for _, f := range []*figures{&plain, &ring} {
			p := newPair(t)
			c := redisRate(t, 1, p.addr, thousand)
			if f == &ring {
				_, shards := groupsOf(p.addr)
				c = rateRing(t, 1, shards, thousand)
			}
			over, _ := lose(t, c, "user:1", thousand, 600, losses, false, func() { p.failOver(t) })
			*f = of(c, over)
		}
	})
	for _, n := range []int{1, 5, 20} {
		t.Run(fmt.Sprintf("%d processes", n), func(t *testing.T) {
			_, over, bound := failovers(t, n, true, 300) // while there is still something to admit, at each loss
			if over > bound {
				t.Errorf("%d over, the bound is %d", over, bound)
			}
			c, over, bound := failovers(t, n, true, 600)
			r := result{bound: bound, formula: "as measured", sluice: of(c, over)}
			if n == 1 {
				r.redisRate, r.goRing = &plain, &ring
			}
			report(t, fmt.Sprintf("failover-%d", n), r)
		})
	}
	t.Run("without floors", func(t *testing.T) {
		c, over, _ := failovers(t, 20, false, 600)
		if over < 1700 {
			t.Errorf("without floors only %d are admitted above Max: the test doesn't show what floors do", over)
		}
		r := result{bound: losses * thousand.Max, formula: "3 x Max", sluice: of(c, over)}
		r.sluice.note = fmt.Sprintf("%d admitted", over+thousand.Max)
		report(t, "failover-no-floors", r)
	})
}

// TestForgets empties the server in other ways.
func TestForgets(t *testing.T) {
	t.Parallel()
	restart := func(t *testing.T, s *server, _ string) { s.restart() }
	flush := func(t *testing.T, s *server, _ string) { command(t, s, "FLUSHALL") }
	// The load is held: a key that is evicted, made anew and evicted again would be two losses.
	evict := func(t *testing.T, s *server, stored string) {
		command(t, s, "CONFIG", "SET", "maxmemory", "3mb")
		filler := make([]byte, 10_000)
		await(t, "the counts are evicted", func() bool {
			for range 20 {
				name := fmt.Sprintf("filler:%d", rand.Int())
				if err := s.client.Set(t.Context(), name, filler, time.Hour).Err(); err != nil {
					t.Fatal(err)
				}
			}
			return s.client.Exists(t.Context(), stored).Val() == 0
		})
		command(t, s, "CONFIG", "SET", "maxmemory", "0")
	}
	for _, test := range []struct {
		id      string
		options []string
		loss    func(t *testing.T, s *server, stored string)
	}{
		{"restart-empty", nil, restart},
		{"flushed", nil, flush},
		{"evicted", []string{"--maxmemory-policy", "volatile-lru", "--maxmemory-samples", "10"}, evict},
	} {
		t.Run(test.id, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t, test.options...)
			groups, shards := groupsOf(s.addr)
			var restarts atomic.Int64
			events := func(e router.Event) {
				if e.Kind == router.Restarted {
					restarts.Add(1)
				}
			}
			play := func(c *contender, key, stored string) (over, bound int64) {
				command(t, s, "FLUSHALL")
				return lose(t, c, key, thousand, 600, 1, test.id == "evicted", func() { test.loss(t, s, stored) })
			}
			base := setup{groups: groups, policy: one(thousand), failure: throttler.FailClosed, router: eager}
			without := ours(t, 5, base)
			withoutOver, _ := play(without, "user:1", storedName("user:1"))
			base.floors, base.router.OnEvent = true, events
			with := ours(t, 5, base)
			over, bound := play(with, "user:2", storedName("user:2"))
			plain, ring := redisRate(t, 5, s.addr, thousand), rateRing(t, 5, shards, thousand)
			plainOver, _ := play(plain, "user:3", "rate:user:3")
			ringOver, _ := play(ring, "user:4", "rate:user:4")
			if withoutOver < 500 {
				t.Errorf("without floors only %d are admitted above Max: the test doesn't show what floors do", withoutOver)
			}
			if test.id == "restart-empty" {
				await(t, "every process has the event", func() bool { return restarts.Load() >= 5 })
			}
			r := result{bound: bound, formula: "as measured; without floors Max", sluice: of(with, over)}
			r.sluice.note = fmt.Sprintf("without floors over %d", withoutOver)
			plainShown, ringShown := of(plain, plainOver), of(ring, ringOver)
			r.redisRate, r.goRing = &plainShown, &ringShown
			report(t, test.id, r)
		})
	}
}

// TestSplitBrain promotes a replica while its primary lives on, and lets half of the processes see the one and half the
// other. Then all see the new one.
func TestSplitBrain(t *testing.T) {
	t.Parallel()
	const processes, before, oldSide, newSide = 10, 400, 300, 100
	old := startRedis(t)
	young := startReplica(t, old)
	play := func(key string, make func(addr string) *contender) (c *contender, over int64) {
		sides := []*address{newAddress(t, old.addr), newAddress(t, old.addr)}
		c = make(sides[0].addr)
		c.processes = append(c.processes[:processes/2], make(sides[1].addr).processes[processes/2:]...)
		c.take(before, key)
		awaitSync(t, young, old)
		young.promote(t)
		sides[1].move(young.addr)
		for i := range oldSide {
			_, _ = c.call(i%(processes/2), key)
		}
		await(t, "the other side has admitted its part", func() bool {
			_, _ = c.call(processes/2+int(c.calls.Load())%(processes/2), key)
			return c.admitted.Load() >= before+oldSide+newSide
		})
		sides[0].move(young.addr)
		c.exhaust(t, key)
		young.follow(t, old) // as it was, for the next one
		return c, c.admitted.Load() - thousand.Max
	}
	with := func(floors bool) func(string) *contender {
		return func(addr string) *contender {
			groups, _ := groupsOf(addr)
			return ours(t, processes, setup{groups: groups, policy: one(thousand), failure: throttler.FailClosed, floors: floors, router: eager})
		}
	}
	c, over := play("user:1", with(true))
	_, withoutOver := play("user:2", with(false))
	plain, plainOver := play("user:3", func(addr string) *contender { return redisRate(t, processes, addr, thousand) })
	ring, ringOver := play("user:4", func(addr string) *contender {
		_, shards := groupsOf(addr)
		return rateRing(t, processes, shards, thousand)
	})
	if withoutOver < oldSide-20 {
		t.Errorf("without floors only %d are admitted above Max: the test doesn't show what floors do", withoutOver)
	}
	r := result{bound: newSide + processes - 1, formula: "100 on the new side, and a call of each process but that with the newest floor", sluice: of(c, over)}
	r.sluice.note = fmt.Sprintf("without floors over %d", withoutOver)
	plainShown, ringShown := of(plain, plainOver), of(ring, ringOver)
	r.redisRate, r.goRing = &plainShown, &ringShown
	report(t, "split-brain", r)
}
