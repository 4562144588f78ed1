//go:build unix

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// creditKeys is how many keys move while processes owe.
const creditKeys = 20

// movers are processes that admit many keys on credit while the keys move.
type movers struct {
	policy limit.Policy
	leases []*lease.Lease

	admitted               [creditKeys]atomic.Int64
	total, onCredit, maybe atomic.Int64 // maybe: without a verdict, and charged or not
}

func moverKey(k int) string { return fmt.Sprintf("user:%d", k) }

// add opens a Lease over a backend, which it owns.
func (m *movers) add(t *testing.T, b backend.Backend, cfg lease.Config) {
	t.Helper()
	ls, err := lease.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ls.Close() })
	m.leases = append(m.leases, ls)
}

// load lets every process ask until ctx ends.
func (m *movers) load(ctx context.Context) *sync.WaitGroup {
	var running sync.WaitGroup
	for _, ls := range m.leases {
		for range 2 {
			running.Go(func() {
				for ctx.Err() == nil {
					m.ask(ls, rand.IntN(creditKeys))
					time.Sleep(rand.N(time.Millisecond))
				}
			})
		}
	}
	return &running
}

func (m *movers) ask(ls *lease.Lease, k int) {
	ctx, cancel := context.WithTimeout(context.Background(), patient.Timeout)
	defer cancel()
	r, err := ls.Take(ctx, backend.Request{Key: moverKey(k), Policy: &m.policy, Cost: 1})
	var failed *backend.Error
	switch {
	case err != nil && (!errors.As(err, &failed) || failed.MayHaveCharged):
		m.maybe.Add(1)
	case err == nil && r.Allowed:
		m.admitted[k].Add(1)
		m.total.Add(1)
		if r.Source == backend.OnCredit {
			m.onCredit.Add(1)
		}
	}
}

// play lets all ask until each key is used up. Meanwhile it makes the changes, each once a further part is used.
func (m *movers) play(t *testing.T, changes ...func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	running := m.load(ctx)
	all := creditKeys * m.policy.Limits[0].Max
	for i, change := range changes {
		await(t, "a part is used", func() bool { return m.total.Load() > all*int64(i+1)/int64(len(changes)+2) })
		change()
	}
	last, since := int64(-1), time.Now()
	await(t, "all keys are used up", func() bool {
		if now := m.total.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 1500*time.Millisecond
	})
	stop()
	running.Wait()
	for _, ls := range m.leases {
		if err := ls.Close(); err != nil {
			t.Error(err)
		}
	}
}

// over is the most that was admitted of a key above its Max.
func (m *movers) over() (most int64) {
	for k := range m.admitted {
		most = max(most, m.admitted[k].Load()-m.policy.Limits[0].Max)
	}
	return most
}

// settled checks that what was admitted is charged, once, apart from what is known as lost.
func (m *movers) settled(t *testing.T, b backend.Loader) {
	t.Helper()
	var lost int64
	for _, ls := range m.leases {
		lost += ls.Stats().LostCharges
	}
	var unpaid int64
	for k := range m.admitted {
		short := m.admitted[k].Load() - usedOf(t, b, moverKey(k), m.policy)
		if short < -m.maybe.Load() {
			t.Errorf("%s: %d were charged more than admitted, with %d calls of unknown outcome", moverKey(k), -short, m.maybe.Load())
		}
		unpaid += max(0, short)
	}
	if unpaid > lost {
		t.Errorf("%d were never charged, but %d are known as lost", unpaid, lost)
	}
	if m.onCredit.Load()*3 < m.total.Load() {
		t.Errorf("only %d of %d on credit: the test shows nothing", m.onCredit.Load(), m.total.Load())
	}
}

// usedOf is what is charged of a key's first limit, also above its Max.
func usedOf(t *testing.T, b backend.Loader, key string, p limit.Policy) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req := backend.Request{Key: key, Policy: &p, Cost: 1}
	loaded, err := b.Load(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	seen := loaded.Peek(&req)
	return p.Limits[0].Max - seen.Binding().Remaining + loaded.State.Excess(&p, state.Moment(&p, key, loaded.Now))
}

// TestCreditReshard adds a group to three and removes it again while three processes owe. Without the handover, which is how
// topologies without an epoch work, a key that moved has its quota again.
func TestCreditReshard(t *testing.T) {
	t.Parallel()
	l := limit.PerDay(500)
	cfg := lease.Config{Slack: 0.3, Processes: 3, Batch: -1}
	bound := lease.BoundError{Slack: cfg.Slack, Processes: cfg.Processes}
	var addrs []string
	for range 4 {
		addrs = append(addrs, startRedis(t).addr)
	}
	groups, _ := groupsOf(addrs...)
	open := func(prefix string, epoch uint64, groups []router.Group) *router.Router {
		r, err := router.Open(router.Topology{Epoch: epoch, Groups: groups}, router.Config{
			Heartbeat: 200 * time.Millisecond, AllowedAddresses: []string{"*"}, Backend: redisbackend.Config{Timeout: patient.Timeout, Prefix: prefix},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	with := &movers{policy: one(l)}
	var changes []func()
	var routers []*router.Router
	for i := range cfg.Processes + 1 {
		routers = append(routers, open("with:", 1, groups[:3]))
		if i < cfg.Processes { // the last one is of the test
			with.add(t, routers[i], cfg)
		}
	}
	defer routers[cfg.Processes].Close()
	for n, now := range [][]router.Group{groups, groups[:3]} {
		topology := router.Topology{Epoch: uint64(n + 2), Groups: now}
		for i := range routers {
			changes = append(changes, func() {
				if err := routers[(i+n)%len(routers)].Update(topology); err != nil {
					t.Error(err)
				}
			})
		}
	}
	with.play(t, changes...)
	with.settled(t, routers[cfg.Processes])

	without := &movers{policy: one(l)}
	for _, now := range [][]router.Group{groups[:3], groups} { // the second time, all are restarted
		without.leases = nil
		for range cfg.Processes {
			without.add(t, open("without:", 0, now), cfg)
		}
		without.play(t)
	}
	if without.over() <= bound.Above(l) {
		t.Errorf("without the handover at most %d are admitted above Max: the test would not notice", without.over())
	}
	shown := figures{over: max(0, with.over())}
	shown.note = fmt.Sprintf("%d of %d on credit; without handover over %d", with.onCredit.Load(), with.total.Load(), without.over())
	report(t, "credit-reshard", result{bound: bound.Above(l), formula: fmt.Sprintf("of a key 3 x floor(0.3 x %d / 3)", l.Max), sluice: shown})
}

// TestCreditFlag moves keys from Memcached to Redis and back while two processes owe, of which the second learns of every
// change later. Without CarryOver a key that moved has its quota again.
func TestCreditFlag(t *testing.T) {
	t.Parallel()
	l := limit.PerDay(500)
	cfg := lease.Config{Slack: 0.3, Processes: 2, Batch: -1}
	bound := lease.BoundError{Slack: cfg.Slack, Processes: cfg.Processes}
	s, mc := startRedis(t), startMemcached(t)
	groups, _ := groupsOf(s.addr)
	open := func(prefix string, carryOver bool, f *stage) *dual.Dual {
		old, err := memcached.New([]string{mc}, memcached.Config{Prefix: prefix, Timeout: patient.Timeout})
		if err != nil {
			t.Fatal(err)
		}
		made, err := router.Open(router.Topology{Groups: groups},
			router.Config{Backend: redisbackend.Config{Prefix: prefix, Timeout: patient.Timeout}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := dual.New(dual.Config{Old: old, New: made, Decide: f.decide, CarryOver: carryOver})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}

	var flags [2]stage
	with := &movers{policy: one(l)}
	for i := range flags {
		flags[i].set(1, 0)
		with.add(t, open("with:", true, &flags[i]), cfg)
	}
	var changes []func()
	for n, percent := range []uint64{50, 100, 40, 0, 100} {
		for i := range flags {
			changes = append(changes, func() { flags[i].set(uint64(n+2), percent) })
		}
	}
	with.play(t, changes...)
	last := open("with:", true, &flags[0])
	defer last.Close()
	with.settled(t, last)

	without := &movers{policy: one(l)}
	for n, percent := range []uint64{0, 100} { // the second time, all are restarted
		without.leases = nil
		flags[0].set(uint64(n+1), percent)
		for range cfg.Processes {
			without.add(t, open("without:", false, &flags[0]), cfg)
		}
		without.play(t)
	}
	if without.over() <= bound.Above(l) {
		t.Errorf("without CarryOver at most %d are admitted above Max: the test would not notice", without.over())
	}
	shown := figures{over: max(0, with.over())}
	shown.note = fmt.Sprintf("%d of %d on credit; without CarryOver over %d", with.onCredit.Load(), with.total.Load(), without.over())
	report(t, "credit-flag", result{bound: bound.Above(l), formula: fmt.Sprintf("of a key 2 x floor(0.3 x %d / 2)", l.Max), sluice: shown})
}
