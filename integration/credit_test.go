//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// debtors are processes that admit one key on credit, each by a proxy of its own.
type debtors struct {
	policy  limit.Policy
	key     string
	proxies []*testserver.Proxy
	leases  []*lease.Lease

	admitted, onCredit, failed, longest atomic.Int64
}

func newDebtors(t *testing.T, s *server, n int, key string, l limit.Limit, cfg lease.Config) *debtors {
	d := &debtors{policy: one(l), key: key}
	for range n {
		p := testserver.NewProxy(t, s.addr)
		b, err := redisbackend.Open(&redis.Options{Addr: p.Addr}, redisbackend.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ls, err := lease.New(b, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ls.Close() })
		d.proxies, d.leases = append(d.proxies, p), append(d.leases, ls)
	}
	return d
}

// load lets every process ask until ctx ends.
func (d *debtors) load(ctx context.Context) *sync.WaitGroup {
	var running sync.WaitGroup
	for _, ls := range d.leases {
		for range 2 {
			running.Go(func() {
				for ctx.Err() == nil {
					d.ask(ls)
					time.Sleep(300 * time.Microsecond)
				}
			})
		}
	}
	return &running
}

func (d *debtors) ask(ls *lease.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	begin := time.Now()
	r, err := ls.Take(ctx, backend.Request{Key: d.key, Policy: &d.policy, Cost: 1})
	for took := int64(time.Since(begin)); ; {
		longest := d.longest.Load()
		if took <= longest || d.longest.CompareAndSwap(longest, took) {
			break
		}
	}
	switch {
	case err != nil:
		d.failed.Add(1)
	case r.Allowed:
		d.admitted.Add(1)
		if r.Source == backend.OnCredit {
			d.onCredit.Add(1)
		}
	}
}

// exhaust waits until nothing has been admitted for a while, though the servers answer.
func (d *debtors) exhaust(t *testing.T) {
	t.Helper()
	last, since := int64(-1), time.Now()
	await(t, "the limit is reached", func() bool {
		if now := d.admitted.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 1500*time.Millisecond
	})
}

func (d *debtors) stats() (sum lease.Stats) {
	for _, ls := range d.leases {
		s := ls.Stats()
		sum.LostCharges += s.LostCharges
		sum.Debt += s.Debt
		sum.Overshoot = max(sum.Overshoot, s.Overshoot)
	}
	return sum
}

// playDebtors suffers a fault, with the allowance and without.
func playDebtors(t *testing.T, id string, fault func(d *debtors), shows func(s lease.Stats) bool) {
	const processes, most = 4, 8000
	s, l := startRedis(t), limit.PerDay(most)
	cfg := lease.Config{Slack: 0.2, Processes: processes, Batch: -1}
	bound := lease.BoundError{Slack: cfg.Slack, Processes: processes}
	with := newDebtors(t, s, processes, "with", l, cfg)
	cfg.Slack, cfg.Processes, cfg.Flush = 0.99, 1, 10*time.Second // each takes the whole for its own, and hears late
	without := newDebtors(t, s, processes, "without", l, cfg)
	for _, d := range []*debtors{with, without} {
		for _, ls := range d.leases {
			d.ask(ls)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	running := [2]*sync.WaitGroup{with.load(ctx), without.load(ctx)}
	await(t, "some is used", func() bool { return with.admitted.Load() > most/10 })
	for _, d := range []*debtors{with, without} {
		fault(d)
	}
	with.exhaust(t)
	without.exhaust(t)
	stop()
	for _, r := range running {
		r.Wait()
	}
	stats := with.stats()
	over, free := with.admitted.Load()-l.Max, without.admitted.Load()-l.Max
	if with.onCredit.Load()*10 < l.Max || !shows(stats) {
		t.Errorf("%d on credit, %+v: the test shows nothing", with.onCredit.Load(), stats)
	}
	if free <= bound.Above(l) {
		t.Errorf("without the allowance %d are above Max: the test would not notice", free)
	}
	shown := figures{over: max(0, over), longest: time.Duration(with.longest.Load())}
	shown.note = fmt.Sprintf("%d of %d on credit; %d owed for good; without the allowance over %d", with.onCredit.Load(), with.admitted.Load(), stats.Debt, free)
	report(t, id, result{bound: bound.Above(l), formula: fmt.Sprintf("%d x floor(0.2 x %d / %d)", processes, most, processes), sluice: shown})
}

// TestCreditServerAway cuts processes off from their server while they owe.
func TestCreditServerAway(t *testing.T) {
	t.Parallel()
	var failed int64
	playDebtors(t, "credit-away", func(d *debtors) {
		for _, p := range d.proxies {
			p.Cut()
		}
		time.Sleep(1500 * time.Millisecond) // the fault lasts
		for _, p := range d.proxies {
			p.Heal()
		}
		failed = max(failed, d.failed.Load())
	}, func(lease.Stats) bool { return failed > 0 })
}

// TestCreditRepliesLost loses the reply of every third script call, of charges as of takes.
func TestCreditRepliesLost(t *testing.T) {
	t.Parallel()
	playDebtors(t, "credit-reply-lost", func(d *debtors) {
		for _, p := range d.proxies {
			p.SetFault(every(3, testserver.CloseAfter))
		}
	}, func(s lease.Stats) bool { return s.LostCharges > 0 })
}

// TestCreditKilled kills one of three processes while it owes; another one takes its place.
func TestCreditKilled(t *testing.T) {
	t.Parallel()
	l := limit.PerDay(6000)
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	j := job{Groups: groups, Limit: l.String(), Slack: 0.3, Among: 3, Pause: 200 * time.Microsecond}
	all := []*process{startChild(t, j), startChild(t, j), startChild(t, j)}
	total := func() (sum int64) {
		for _, p := range all {
			n, _ := p.admitted(t)
			sum += n
		}
		return sum
	}
	await(t, "a third is used", func() bool { return total() >= l.Max/3 })
	all[0].signal(syscall.SIGKILL)
	<-all[0].done
	all = append(all, startChild(t, j))
	for _, p := range all[1:] {
		await(t, "it is denied", func() bool { _, denials := p.admitted(t); return denials > 20 })
	}
	onCredit := 0
	for _, p := range all[1:] {
		p.close(t)
		for _, d := range p.decisions {
			if d.source == "on_credit" {
				onCredit++
			}
		}
	}
	if onCredit < 300 {
		t.Errorf("only %d on credit: the test shows nothing", onCredit)
	}
	c := &contender{name: "Sluice"}
	unpaid := total() - c.counted(t, s.addr, "user:1", l)
	bound := lease.BoundError{Slack: j.Slack, Processes: j.Among}
	each := bound.Above(l) / int64(j.Among)
	if unpaid > each {
		t.Errorf("%d were never charged, of one process that was killed with a debt of at most %d", unpaid, each)
	}
	shown := figures{over: max(0, total()-l.Max), note: fmt.Sprintf("%d never charged of at most %d", max(0, unpaid), each)}
	report(t, "credit-killed", result{bound: 4 * each, formula: fmt.Sprintf("4 lives x floor(0.3 x %d / 3)", l.Max), sluice: shown})
}
