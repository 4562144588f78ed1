package lease_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// fate is what becomes of a charge.
type fate int

const (
	executed  fate = iota
	refused        // certainly not executed
	lostCall       // not executed, and the caller doesn't know
	lostReply      // executed, and the caller doesn't know
)

// creditor is a server a round trip away that decides by the algebra. Charges have a fate.
type creditor struct {
	trip time.Duration

	mu      sync.Mutex // guards all below
	states  map[string]*state.State
	fate    func(n int) fate
	calls   []string // takes, charges and refunds, as they are sent
	charges int

	chargedTo map[int64]int64 // by the end of the window or sub-bucket
}

func newCreditor(trip time.Duration) *creditor {
	return &creditor{trip: trip, states: make(map[string]*state.State), chargedTo: make(map[int64]int64)}
}

// travel notes a call as it is sent, and takes it to the server.
func (d *creditor) travel(call string) {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	d.mu.Unlock()
	time.Sleep(d.trip / 2)
}

func (d *creditor) do(req *backend.Request, do func(*state.State, state.At)) (r backend.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.states[req.Key]
	if s == nil {
		s = new(state.State)
		d.states[req.Key] = s
	}
	at := state.Moment(req.Policy, req.Key, time.Now().UnixMicro())
	if req.Floor != nil {
		s.Join(req.Policy, at, req.Floor)
	}
	do(s, at)
	return backend.Result{Now: at.Micros, State: s.Clone(), Source: backend.Primary}
}

func (d *creditor) Take(_ context.Context, req backend.Request) (r backend.Result, err error) {
	d.travel("take")
	var verdict state.Verdict
	r = d.do(&req, func(s *state.State, at state.At) {
		verdict = s.Take(req.Policy, at, req.Cost)
		d.noteLocked(&verdict, req.Cost)
	})
	r.Verdict = verdict
	time.Sleep(d.trip / 2)
	return r, nil
}

// noteLocked notes where cost is charged.
func (d *creditor) noteLocked(v *state.Verdict, cost int64) {
	receipt := v.Receipt()
	if receipt.Cost == 0 {
		return
	}
	if end, position, _ := receipt.Charge(0); position > 0 {
		d.chargedTo[end] += cost
	}
}

func (d *creditor) Peek(_ context.Context, req backend.Request) (r backend.Result, err error) {
	var verdict state.Verdict
	r = d.do(&req, func(s *state.State, at state.At) { verdict = s.Peek(req.Policy, at, req.Cost) })
	r.Verdict = verdict
	return r, nil
}

func (d *creditor) Seed(_ context.Context, req backend.Request, st state.State) error {
	d.do(&req, func(s *state.State, at state.At) { s.Join(req.Policy, at, &st) })
	return nil
}

func (d *creditor) Refund(_ context.Context, req backend.Request, receipt state.Receipt, n int64) error {
	d.travel("refund")
	d.do(&req, func(s *state.State, at state.At) { s.Refund(at, &receipt, n) })
	time.Sleep(d.trip / 2)
	return nil
}

func (d *creditor) Reset(_ context.Context, req backend.Request) error {
	d.travel("reset")
	d.do(&req, func(s *state.State, at state.At) { s.Reset(req.Policy, at) })
	time.Sleep(d.trip / 2)
	return nil
}

func (d *creditor) Charge(ctx context.Context, req backend.Request, mark state.Mark) (r backend.Result, err error) {
	d.travel(fmt.Sprint("charge ", req.Cost))
	d.mu.Lock()
	fate := executed
	if d.fate != nil {
		fate = d.fate(d.charges)
	}
	d.charges++
	d.mu.Unlock()
	if fate == executed || fate == lostReply {
		var verdict state.Verdict
		r = d.do(&req, func(s *state.State, at state.At) {
			verdict = s.Charge(req.Policy, at, mark, req.Cost)
			d.noteLocked(&verdict, req.Cost)
		})
		r.Verdict = verdict
	}
	select {
	case <-time.After(d.trip / 2):
	case <-ctx.Done():
	}
	if fate != executed {
		return backend.Result{}, &backend.Error{Op: "charge", Kind: backend.Unavailable, MayHaveCharged: fate != refused, Err: errLost}
	}
	return r, nil
}

func (d *creditor) Close() error { return nil }

func (d *creditor) sent() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.calls = nil }()
	return strings.Join(d.calls, ", ")
}

func (d *creditor) used(t *testing.T, p *limit.Policy) int64 {
	t.Helper()
	r, err := d.Peek(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	return p.Limits[0].Quota() - r.Binding().Remaining
}
