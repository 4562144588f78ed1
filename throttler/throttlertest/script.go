package throttlertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// Step is the answer to one take. Make it with [Allow], [Deny], [Fail] or [Hang], and set further fields where they matter.
type Step struct {
	Allowed    bool
	Remaining  int64         // of every limit of the key's policy, after the request
	RetryAfter time.Duration // of a denial

	// Guarantee and Cause are those of the Decision, such as throttler.Bounded and backend.ErrCountsLost. Zero: Exact.
	Guarantee throttler.Guarantee
	Cause     error

	// Err is returned in place of a verdict. The failure policy of the Config then decides.
	Err error

	// Hang makes the take last until its context ends, by the caller's deadline or Config.Timeout.
	Hang bool
}

// Allow admits a request and leaves this much.
func Allow(remaining int64) Step { return Step{Allowed: true, Remaining: remaining} }

// Deny denies a request, which may be repeated after retryAfter.
func Deny(retryAfter time.Duration) Step { return Step{RetryAfter: retryAfter} }

// Fail fails with err. If err is nil the error is that of a server that is down: a *backend.Error of kind Unavailable.
func Fail(err error) Step {
	if err == nil {
		err = &backend.Error{Op: "take", Node: "throttlertest", Kind: backend.Unavailable, Err: errDown}
	}
	return Step{Err: err}
}

// Hang gives no answer until the context of the take ends.
func Hang() Step { return Step{Hang: true} }

var errDown = errors.New("down, by the test's script")

// Call is an operation that reached a [Script].
type Call struct {
	Op     throttler.Operation
	Key    string
	Policy string // its name
	Cost   int64  // of OpRefund and OpGrant what is given back, of OpCharge the overrun; 0 for OpReset
}

// Script is a backend that answers each take with its next step, and repeats the last one. Without steps it admits. A peek gets the
// answer of the next take. Refunds, charges, resets and grants succeed. It is safe for concurrent use.
type Script struct {
	closed atomic.Bool

	mu    sync.Mutex // guards all below
	steps []Step
	next  int
	calls []Call
}

var (
	_ backend.Backend  = (*Script)(nil)
	_ backend.Peeker   = (*Script)(nil)
	_ backend.Refunder = (*Script)(nil)
	_ backend.Charger  = (*Script)(nil)
	_ backend.Resetter = (*Script)(nil)
	_ backend.Granter  = (*Script)(nil)
)

// NewScript returns a Script, as a Backend for throttler.New.
func NewScript(steps ...Step) *Script {
	s := new(Script)
	s.Then(steps...)
	return s
}

// Then adds steps. The step that was repeated so far is not repeated again.
func (s *Script) Then(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, steps...)
}

// Calls returns the operations so far, in their order: takes, peeks, refunds, charges, resets and grants. A key on an allow or
// deny list, and bad input, make none.
func (s *Script) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// Take implements [backend.Backend].
func (s *Script) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := s.check(req.CheckTake(ctx)); err != nil {
		return backend.Result{}, err
	}
	return s.answer(ctx, throttler.OpTake, &req)
}

// Peek implements [backend.Peeker].
func (s *Script) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := s.check(req.CheckTake(ctx)); err != nil {
		return backend.Result{}, err
	}
	return s.answer(ctx, throttler.OpPeek, &req)
}

func (s *Script) answer(ctx context.Context, op throttler.Operation, req *backend.Request) (r backend.Result, err error) {
	step := s.step(op, req)
	switch {
	case step.Hang:
		<-ctx.Done()
		return r, &backend.Error{Op: op.String(), Node: "throttlertest", Kind: backend.Interrupted, MayHaveCharged: true, Err: ctx.Err()}
	case step.Err != nil:
		return r, step.Err
	}
	at, cost, wait := state.At{Micros: time.Now().UnixMicro()}, req.Cost, step.RetryAfter
	if op == throttler.OpPeek {
		cost = 0 // is not charged
	}
	if step.Allowed {
		wait = longestWindow(req.Policy)
	}
	return backend.Result{
		Verdict: state.NewVerdict(req.Policy, at, step.Allowed, cost, step.Remaining, wait), Now: at.Micros, Source: backend.Local,
		Guarantee: step.Guarantee, Cause: step.Cause,
	}, nil
}

// step records a call and returns the step that answers it.
func (s *Script) step(op throttler.Operation, req *backend.Request) Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, Call{op, req.Key, req.Policy.Name, req.Cost})
	if len(s.steps) == 0 {
		return Allow(req.Policy.Limits[0].Quota())
	}
	step := s.steps[min(s.next, len(s.steps)-1)]
	if op == throttler.OpTake && s.next < len(s.steps) {
		s.next++
	}
	return step
}

// Refund implements [backend.Refunder].
func (s *Script) Refund(ctx context.Context, req backend.Request, _ state.Receipt, amount int64) error {
	return s.record(ctx, throttler.OpRefund, &req, amount)
}

// Charge implements [backend.Charger]. Nothing remains after it.
func (s *Script) Charge(ctx context.Context, req backend.Request, _ state.Mark) (r backend.Result, err error) {
	if err := req.CheckCharge(ctx); err != nil {
		return r, err
	}
	at := state.At{Micros: time.Now().UnixMicro()}
	r.Verdict = state.NewVerdict(req.Policy, at, true, req.Cost, 0, longestWindow(req.Policy))
	r.Now, r.Source = at.Micros, backend.Local
	return r, s.record(ctx, throttler.OpCharge, &req, req.Cost)
}

// Reset implements [backend.Resetter].
func (s *Script) Reset(ctx context.Context, req backend.Request) error {
	return s.record(ctx, throttler.OpReset, &req, 0)
}

// Grant implements [backend.Granter].
func (s *Script) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := s.check(req.CheckGrant(ctx, extra)); err != nil {
		return err
	}
	return s.record(ctx, throttler.OpGrant, &req, extra)
}

func (s *Script) record(ctx context.Context, op throttler.Operation, req *backend.Request, cost int64) error {
	if err := s.check(req.Check(ctx)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, Call{op, req.Key, req.Policy.Name, cost})
	return nil
}

// Close implements [backend.Backend].
func (s *Script) Close() error {
	s.closed.Store(true)
	return nil
}

func (s *Script) check(bad error) error {
	if bad == nil && s.closed.Load() {
		return backend.ErrClosed
	}
	return bad
}

func longestWindow(p *limit.Policy) (longest time.Duration) {
	for _, l := range p.Limits {
		longest = max(longest, l.Window)
	}
	return longest
}
