package simulation

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

// fleetLink is a process's way to the server.
type fleetLink struct {
	w    *fleet
	dead atomic.Bool

	mu      sync.Mutex // guards all below
	fate    *rand.Rand
	charged time.Time // when the latest charge was sent,
	charges int64     // and how many were sent then
}

var errReplyLost = errors.New("reply lost")

// loses is whether a reply is lost.
func (l *fleetLink) loses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Loses > 0 && chance(l.fate, l.w.Loses)
}

// Take implements [backend.Backend].
func (l *fleetLink) Take(_ context.Context, req backend.Request) (r backend.Result, err error) {
	time.Sleep(l.w.Trip / 2)
	r = l.w.take(&req)
	time.Sleep(l.w.Trip / 2)
	if l.loses() {
		if r.Allowed {
			receipt := r.Receipt()
			l.w.lose(&req, &receipt, req.Cost)
		}
		return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, MayHaveCharged: true, Err: errReplyLost}
	}
	return r, nil
}

// Refund implements [backend.Refunder].
func (l *fleetLink) Refund(_ context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if l.dead.Load() {
		l.w.lose(&req, &receipt, amount)
		return nil
	}
	time.Sleep(l.w.Trip / 2)
	l.w.refund(&req, &receipt, amount)
	time.Sleep(l.w.Trip / 2)
	if l.loses() {
		return &backend.Error{Op: "refund", Kind: backend.Unavailable, MayHaveCharged: true, Err: errReplyLost}
	}
	return nil
}

// Charge implements [backend.Charger].
func (l *fleetLink) Charge(_ context.Context, req backend.Request, mark state.Mark) (r backend.Result, err error) {
	end := mark.At(len(req.Policy.Limits) - 1)
	if l.dead.Load() {
		l.w.forgive(&req, end)
		return r, &backend.Error{Op: "charge", Kind: backend.Unavailable, MayHaveCharged: true, Err: errReplyLost}
	}
	l.countCharge()
	time.Sleep(l.w.Trip / 2)
	r = l.w.charge(&req, mark, end)
	time.Sleep(l.w.Trip / 2)
	if l.loses() {
		return backend.Result{}, &backend.Error{Op: "charge", Kind: backend.Unavailable, MayHaveCharged: true, Err: errReplyLost}
	}
	return r, nil
}

// countCharge counts the calls that charges make. Of those that a process sends at one moment two go at once, over a connection
// each, and the others share calls, as in package redispipe.
func (l *fleetLink) countCharge() {
	const connections, most = 2, 128
	l.mu.Lock()
	if now := time.Now(); !now.Equal(l.charged) {
		l.charged, l.charges = now, 0
	}
	shared := l.charges - connections
	l.charges++
	l.mu.Unlock()
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.sent.charges++
	if shared >= 0 {
		l.w.sent.sharedCharges++
		if shared%most == 0 {
			l.w.sent.sharedCalls++
		}
	}
}

// Close implements [backend.Backend].
func (*fleetLink) Close() error { return nil }

func (w *fleet) take(req *backend.Request) backend.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, at := &w.keys[w.names[req.Key]], state.At{Micros: time.Now().UnixMicro()}
	if req.Floor != nil {
		k.state.Join(req.Policy, at, req.Floor)
	}
	r := backend.Result{Verdict: k.state.Take(req.Policy, at, req.Cost), Now: at.Micros, Source: backend.Primary}
	r.State = k.state.Clone()
	if r.Allowed {
		k.batch = max(k.batch, req.Cost)
		w.move(k, at.Micros, req.Cost)
	}
	return r
}

func (w *fleet) charge(req *backend.Request, mark state.Mark, end int64) backend.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, at := &w.keys[w.names[req.Key]], state.At{Micros: time.Now().UnixMicro()}
	if req.Floor != nil {
		k.state.Join(req.Policy, at, req.Floor)
	}
	r := backend.Result{Verdict: k.state.Charge(req.Policy, at, mark, req.Cost), Now: at.Micros, Source: backend.Primary}
	r.State = k.state.Clone()
	w.move(k, end-1, req.Cost)
	return r
}

// forgive books what was admitted, and will not be charged.
func (w *fleet) forgive(req *backend.Request, end int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Uncharged += req.Cost
	w.move(&w.keys[w.names[req.Key]], end-1, req.Cost)
}

func (w *fleet) refund(req *backend.Request, receipt *state.Receipt, amount int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := &w.keys[w.names[req.Key]]
	w.sent.refunds++
	k.state.Refund(state.At{Micros: time.Now().UnixMicro()}, receipt, amount)
	w.back(k, receipt, amount)
}

// lose books what is charged, and will neither be admitted nor given back.
func (w *fleet) lose(req *backend.Request, receipt *state.Receipt, amount int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Lost += amount
	w.back(&w.keys[w.names[req.Key]], receipt, amount)
}

func (w *fleet) back(k *fleetKey, receipt *state.Receipt, amount int64) {
	end, _, _ := receipt.Charge(len(w.Policy.Limits) - 1)
	w.move(k, end-1, -amount)
}
