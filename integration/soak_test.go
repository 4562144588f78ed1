//go:build unix

package integration_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

var soak = flag.Duration("soak", 0, "how long `TestSoak` goes on; once through all faults if zero, and then with fewer keys in TestSoakKeys")

// A soaker is four processes with leases on three groups of servers, or on four, to which a fault happens in each cycle.
type soaker struct {
	t       *testing.T
	all     *contender
	groups  []router.Group // all four
	epoch   uint64
	now     int // how many of them are in force
	pair    *pair
	b, c, d *server
	link    *testserver.Proxy // before b
	servers []*server
}

// A fault is one of those that take turns.
type fault struct {
	name  string
	loses string // the group whose counts are lost; empty for none
	do    func()
}

const (
	soakProcesses = 4
	soakDrain     = 80 * time.Second // how long former topologies are remembered: the window, and twice what they settle in
)

func newSoaker(t *testing.T) *soaker {
	s := &soaker{t: t, pair: newPair(t), b: startRedis(t), c: startRedis(t), d: startRedis(t), epoch: 1, now: 3}
	s.link = testserver.NewProxy(t, s.b.addr)
	s.servers = []*server{s.pair.primary, s.pair.replica, s.b, s.c, s.d}
	s.groups, _ = groupsOf(s.pair.addr, s.link.Addr, s.c.addr, s.d.addr)
	s.all = ours(t, soakProcesses, setup{
		groups: s.groups[:s.now], epoch: s.epoch, policy: one(soaked), failure: throttler.FailClosed,
		lease:  &lease.Config{Batch: 5, Processes: soakProcesses, MaxKeys: 1024},
		router: router.Config{Settle: 10 * time.Second, Drain: soakDrain, Backend: patient},
	}).unhurried()
	return s
}

// soaked is longer than a cycle, whose keys are its own.
var soaked = limit.PerMinute(300)

func (s *soaker) faults() []fault {
	last := func(d time.Duration) { time.Sleep(d) } // how long a fault lasts, not a wait for anything
	return []fault{
		{name: "none", do: func() {}},
		{name: "primary killed, restarts empty", loses: "b", do: func() {
			s.b.kill()
			last(300 * time.Millisecond)
			s.b.restart()
		}},
		{name: "frozen", do: func() {
			s.c.pause()
			last(400 * time.Millisecond)
			s.c.resume()
		}},
		{name: "replies lost", do: func() {
			s.link.SetFault(every(3, testserver.CloseAfter))
			last(400 * time.Millisecond)
			s.link.SetFault(nil)
		}},
		{name: "failover that loses all", loses: "a", do: func() { s.pair.failOver(s.t) }},
		{name: "flushed", loses: "c", do: func() { command(s.t, s.c, "FLUSHALL") }},
		{name: "cut off", do: func() {
			s.link.Cut()
			last(300 * time.Millisecond)
			s.link.Heal()
		}},
		{name: "resharded", do: func() {
			s.epoch, s.now = s.epoch+1, 7-s.now
			for i := range s.all.processes {
				if err := s.all.sluiceOf(i).router.Update(router.Topology{Epoch: s.epoch, Groups: s.groups[:s.now]}); err != nil {
					s.t.Error(err)
				}
				last(50 * time.Millisecond)
			}
		}},
	}
}

// cycle lets a fault happen under load on keys of its own, and takes what they have left.
func (s *soaker) cycle(n int, f fault) {
	const keys = 24
	s.t.Helper()
	name := func(k int) string { return fmt.Sprintf("cycle:%d:user:%d", n, k) }
	var owners [keys]string
	for k := range owners {
		owners[k] = s.all.sluiceOf(0).router.Owner(name(k))
	}
	s.all.longest.Store(0)
	calls, unknown := s.all.calls.Load(), s.all.unknown.Load()
	var admitted [keys]atomic.Int64
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	var running sync.WaitGroup
	for caller := range 2 * soakProcesses {
		running.Go(func() {
			for ctx.Err() == nil {
				k := rand.IntN(keys)
				if ok, _ := s.all.call(caller%soakProcesses, name(k)); ok {
					admitted[k].Add(1)
				}
				time.Sleep(rand.N(time.Millisecond))
			}
		})
	}
	await(s.t, "half is admitted", func() bool {
		var sum int64
		for k := range admitted {
			sum += admitted[k].Load()
		}
		return sum > keys*soaked.Max/2
	})
	f.do()
	time.Sleep(200 * time.Millisecond) // some load after the fault, too
	stop()
	running.Wait()

	over := int64(0)
	for k := range admitted {
		total, bound := admitted[k].Load()+s.all.exhaust(s.t, name(k)), soaked.Max
		if owners[k] == f.loses {
			bound += soaked.Max // promise P4
		}
		if total > bound {
			s.t.Errorf("cycle %d, %s: %d admitted of a key, the bound is %d", n, f.name, total, bound)
		}
		over += max(0, total-soaked.Max)
	}
	longest := time.Duration(s.all.longest.Load())
	if longest > deadline+slack {
		s.t.Errorf("cycle %d, %s: a call took %v", n, f.name, longest)
	}
	connections := int64(0)
	for _, server := range s.servers {
		connections = max(connections, connected(s.t, server))
	}
	if most := int64(soakProcesses*10*runtime.GOMAXPROCS(0)) + 10; connections > most {
		s.t.Errorf("cycle %d, %s: %d connections at a server", n, f.name, connections)
	}
	s.t.Logf("cycle %d, %s: %d calls, %d without a verdict, over %d, longest %d ms; %d goroutines, %d connections, heap %.1f MB",
		n, f.name, s.all.calls.Load()-calls, s.all.unknown.Load()-unknown, over, longest.Milliseconds(), runtime.NumGoroutine(),
		connections, float64(heapInUse())/(1<<20))
}

// TestSoak lets faults take turns on servers under load, and checks in each cycle what was admitted, how long calls took and
// what is held, and at the end that nothing has piled up. It runs alone, for it looks at the memory and the goroutines of
// the whole process.
func TestSoak(t *testing.T) {
	idle := runtime.NumGoroutine()
	s := newSoaker(t)
	faults := s.faults()
	begin, n := time.Now(), 0
	var goroutines, baseGoroutines int
	var heap, baseHeap int64
	for n == 0 || time.Since(begin) < *soak && !t.Failed() {
		for _, f := range faults {
			n++
			s.cycle(n, f)
		}
		goroutines, heap = runtime.NumGoroutine()-idle, heapInUse()
		if goroutines > 300 || heap > 64<<20 {
			t.Errorf("after cycle %d: %d goroutines, %d bytes: not bounded", n, goroutines, heap)
		}
		if baseHeap == 0 && time.Since(begin) > 2*soakDrain { // former topologies come and go from here on
			baseGoroutines, baseHeap = goroutines, heap
		}
	}
	if baseHeap > 0 && (goroutines > baseGoroutines*5/4+10 || heap > baseHeap+8<<20) {
		t.Errorf("%d goroutines and %d bytes have become %d and %d", baseGoroutines, baseHeap, goroutines, heap)
	}
}
