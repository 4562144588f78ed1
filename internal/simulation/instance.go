package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// instance is an application process, from its start to its end.
type instance struct {
	w        *world
	slot, id int
	name     string
	random   *rand.Rand
	router   *router.Router
	lease    *lease.Lease
	throttle *throttler.Throttler
	limit    time.Duration // of a call
	dead     atomic.Bool

	heard map[place][]int64 // the latest charge that it has heard of, by the server's life; under the world's mutex
}

// occupy lets one instance after the other live.
func (w *world) occupy(slot int) {
	for life := 0; time.Now().Before(w.ends); life++ {
		in := &instance{
			w: w, slot: slot, id: slot + life*w.Instances, name: fmt.Sprintf("app%d.%d", slot, life),
			random: dice(w.seed, "instance", slot, life), heard: make(map[place][]int64),
		}
		time.Sleep(span(in.random, 0, 100*time.Millisecond))
		in.live()
	}
}

func (in *instance) live() {
	w, r := in.w, in.random
	w.mu.Lock()
	topology := w.published
	if topology.Previous != nil && !w.Informed && chance(r, 0.3) {
		topology = *topology.Previous // it started before the news was there
	}
	w.note("%s: starts under topology %d", in.name, topology.Epoch)
	w.mu.Unlock()

	lag := span(r, 0, 2*shortestWay)
	var err error
	in.router, err = router.Open(topology, router.Config{
		Heartbeat:        -1,
		TripAfter:        []int{-1, 5}[r.IntN(2)],
		AllowedAddresses: []string{"*"},
		OpenFor:          3, // so short that the breaker's own randomness has no room
		Node: func(address string) (backend.Backend, error) {
			for _, n := range w.nodes {
				if address == n.group+":1" || address == n.group+":2" {
					return &link{w: w, from: in, to: n, replica: address == n.group+":2", name: address, lag: lag}, nil
				}
			}
			return nil, errors.New("no such server")
		},
	})
	if err != nil {
		panic(err)
	}
	cfg := lease.Config{
		Processes: 1 + r.IntN(3), Batch: 2 + r.Int64N(8), Steady: chance(r, 0.3),
		Life: span(r, 100*time.Millisecond, 2*time.Second), Recheck: span(r, 20*time.Millisecond, time.Second),
	}
	if w.NoLeases || chance(r, 0.15) {
		cfg.Batch = -1
	}
	wrong := time.Duration(r.Int64N(int64(20*365*24*time.Hour))) - 10*365*24*time.Hour
	start := time.Now()
	cfg.Now = func() time.Time {
		passed := time.Since(start)
		if w.Plant == LeaseTooLong {
			passed /= 2
		}
		return start.Add(wrong + passed)
	}
	in.lease, err = lease.New(&below{in}, cfg)
	if err != nil {
		panic(err)
	}
	in.limit = span(r, 60*time.Millisecond, 500*time.Millisecond)
	if w.Patient {
		in.limit += time.Second
	}
	in.throttle, err = throttler.New(throttler.Config{
		Backend: &above{in}, Policy: *w.policy, Failure: []throttler.FailurePolicy{throttler.FailError, throttler.FailClosed}[r.IntN(2)],
		Timeout: in.limit, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.live[in.slot] = in
	w.mu.Unlock()

	ends := time.Now().Add(span(r, 300*time.Millisecond, w.Span))
	if ends.After(w.ends) {
		ends = w.ends
	}
	var callers sync.WaitGroup
	for c := range w.Callers {
		callers.Go(func() { in.call(c, ends) })
	}
	if w.Crashes && chance(r, 0.6) {
		time.Sleep(time.Until(ends) - span(r, 0, 100*time.Millisecond))
		in.dead.Store(true)
		w.mu.Lock()
		w.note("%s: crashes", in.name)
		w.mu.Unlock()
	}
	callers.Wait()
	w.mu.Lock()
	w.live[in.slot] = nil
	w.note("%s: closes", in.name)
	w.mu.Unlock()
	_ = in.throttle.Close()
	if err := in.lease.Close(); err != nil {
		w.mu.Lock()
		w.violate("%s: close: %v", in.name, err)
		w.mu.Unlock()
	}
}

func (in *instance) update(t router.Topology) {
	err := in.router.Update(t)
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	in.w.note("%s: informed of topology %d: %v", in.name, t.Epoch, err)
	if err != nil && !errors.Is(err, router.ErrTopologyOld) && !errors.Is(err, backend.ErrClosed) {
		in.w.violate("%s: update: %v", in.name, err)
	}
}

type callKey struct{}

// callOf is the number of the call that a context belongs to; 0 for none.
func callOf(ctx context.Context) uint64 {
	id, _ := ctx.Value(callKey{}).(uint64)
	return id
}

// call is one caller: a loop of calls, now and then of other kinds than Allow.
func (in *instance) call(caller int, ends time.Time) {
	w, r := in.w, dice(in.w.seed, "caller", in.id, caller)
	for n := 0; ; n++ {
		time.Sleep(span(r, 0, 40*time.Millisecond))
		if !time.Now().Before(ends) || in.dead.Load() {
			return
		}
		key, cost := w.keys[min(r.IntN(2*w.Keys), r.IntN(w.Keys))], 1+r.Int64N(3)
		ctx := context.WithValue(context.Background(), callKey{}, fingerprint(in.id, caller, n))
		limit, cancel := in.limit, context.CancelFunc(func() {})
		if !w.Patient && chance(r, 0.3) {
			own := span(r, time.Millisecond, 80*time.Millisecond)
			ctx, cancel = context.WithTimeout(ctx, own)
			limit = min(limit, own)
		}
		switch {
		case chance(r, w.Resets):
			in.bounded(limit, func() { _ = in.throttle.Reset(ctx, key) })
		case chance(r, w.Refunds):
			in.reserve(ctx, r, key, cost, limit)
		case chance(r, 0.03):
			in.bounded(limit, func() { _, _ = in.throttle.Peek(ctx, key) })
		default:
			in.bounded(limit, func() {
				d, err := in.throttle.AllowN(ctx, key, cost)
				in.judge(&d, err)
			})
		}
		cancel()
	}
}

// reserve charges, works, and settles for less.
func (in *instance) reserve(ctx context.Context, r *rand.Rand, key string, cost int64, limit time.Duration) {
	var held *throttler.Reservation
	in.bounded(limit, func() {
		var err error
		if held, err = in.throttle.Reserve(ctx, key, cost); err == nil {
			d := held.Decision()
			in.judge(&d, nil)
		} else {
			in.judge(&throttler.Decision{}, err)
		}
	})
	if held == nil || !held.Decision().Allowed {
		return
	}
	time.Sleep(span(r, 0, 60*time.Millisecond))
	if in.dead.Load() {
		return
	}
	ctx = context.WithValue(context.Background(), callKey{}, callOf(ctx))
	in.bounded(in.limit, func() { _ = held.Settle(ctx, r.Int64N(cost)) })
}

// bounded checks promise P11: time stands still but for waiting, so there is nothing to allow for.
func (in *instance) bounded(limit time.Duration, do func()) {
	began := time.Now()
	do()
	if took := time.Since(began); took > limit {
		in.w.mu.Lock()
		in.w.violate("%s: P11: a call of at most %s took %s", in.name, limit, took)
		in.w.mu.Unlock()
	}
}

// judge checks promise P13, and that calls fail for a reason only.
func (in *instance) judge(d *throttler.Decision, err error) {
	w := in.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Calls++
	if err != nil || d.Source == throttler.Fallback {
		w.report.Errors++
		if err == nil {
			err = d.Cause
		}
		if !w.faulty() && !in.dead.Load() && (w.Patient || !errors.Is(err, context.DeadlineExceeded)) {
			w.violate("%s: no verdict although nothing is wrong: %v", in.name, err)
		}
		return
	}
	w.report.Sources[d.Source]++
	switch {
	case (d.Guarantee != throttler.Exact) != (d.Cause != nil):
		w.violate("%s: P13: %s with the cause %v", in.name, d.Guarantee, d.Cause)
	case d.Guarantee != throttler.Exact:
		w.report.Inexact++
		known := errors.Is(d.Cause, backend.ErrBucketLeased) || errors.Is(d.Cause, backend.ErrReplicaMayLag)
		known = known || errors.Is(d.Cause, context.DeadlineExceeded)             // too little time for a handover, which is no fault
		known = known || !w.Informed && errors.Is(d.Cause, router.ErrTopologyOld) // it missed a topology, and no server could say which
		if !w.faulty() && !in.dead.Load() && !known {
			w.violate("%s: P13: %s although nothing is wrong: %v", in.name, d.Guarantee, d.Cause)
		}
	}
	if d.Allowed {
		w.report.Admitted++
	}
}

// knows is the latest charge of a key that the instance has heard of, for each life of a server.
func (in *instance) knows(n *node, key string) []int64 {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	return slices.Clone(in.heard[place{n, key}])
}

func (in *instance) learned(n *node, key string, life int, serial int64) {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	known := in.heard[place{n, key}]
	for len(known) <= life {
		known = append(known, 0)
	}
	known[life] = max(known[life], serial)
	in.heard[place{n, key}] = known
	if life == n.life {
		in.w.book.acknowledged[place{n, key}] = max(in.w.book.acknowledged[place{n, key}], serial)
	}
}

// above is the Lease as the Throttler sees it: what is admitted there is admitted.
type above struct{ *instance }

func (a *above) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := a.lease.Take(ctx, req)
	if err == nil && r.Allowed {
		a.w.mu.Lock()
		a.w.book.admitted(a.instance, callOf(ctx), &req, &r)
		a.w.mu.Unlock()
	}
	return r, err
}

func (a *above) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	return a.lease.Peek(ctx, req)
}

// Refund frees what is given back in the book at once: from here on others may have it.
func (a *above) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	a.w.mu.Lock()
	a.w.book.cancelled(callOf(ctx), &req, &receipt, amount)
	a.w.mu.Unlock()
	return a.lease.Refund(ctx, req, receipt, amount)
}

func (a *above) Reset(ctx context.Context, req backend.Request) error { return a.lease.Reset(ctx, req) }

func (a *above) Close() error { return a.lease.Close() }

// below is the Router as the Lease sees it: each call here is charged at most once.
type below struct{ *instance }

func (b *below) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	t := new(trip)
	r, err := b.router.Take(context.WithValue(ctx, tripKey{}, t), req)
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.book.returned(b.instance, t, &r, err)
	return r, err
}

func (b *below) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	return b.router.Peek(ctx, req)
}

func (b *below) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	b.w.mu.Lock()
	resets := b.w.book.asked(&req, &receipt, amount)
	b.w.mu.Unlock()
	err := b.router.Refund(ctx, req, receipt, amount)
	if failed, ok := errors.AsType[*backend.Error](err); err != nil && !(ok && failed.MayHaveCharged) {
		b.w.mu.Lock()
		b.w.book.unasked(&req, &receipt, amount, resets)
		b.w.mu.Unlock()
	}
	return err
}

func (b *below) Reset(ctx context.Context, req backend.Request) error {
	return b.router.Reset(ctx, req)
}

func (b *below) Close() error { return b.router.Close() }
