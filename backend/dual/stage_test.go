//go:build unix

package dual_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// journal lists the calls that the sides of a Dual get, in order.
type journal struct {
	mu    sync.Mutex // guards calls
	calls []string
}

func (j *journal) note(call string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, call)
}

// read returns what was noted since the last read.
func (j *journal) read() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := strings.Join(j.calls, ", ")
	j.calls = nil
	return text
}

// recorded is a Memory that keeps a journal and can fail.
type recorded struct {
	*memory.Memory
	name    string
	journal *journal
	fault   atomic.Pointer[fault]
	closes  atomic.Int64
}

// fault comes before a call: it may fail it, hold it up, or change its request.
type fault func(ctx context.Context, op string, req *backend.Request) error

func (r *recorded) set(f fault) { r.fault.Store(&f) }

// gone is the fault of a server that is down.
func gone(_ context.Context, op string, _ *backend.Request) error {
	return &backend.Error{Op: op, Node: "fake", Kind: backend.Unavailable, Err: errors.New("gone")}
}

func (r *recorded) call(ctx context.Context, op string, req *backend.Request) error {
	call := r.name + " " + op
	if req.Move.Version > 0 {
		call += fmt.Sprintf(" %d", req.Move.Version)
		if op != "seal" && op != "load" {
			call += []string{" ask", " adopt", " alone"}[req.Move.Step]
		}
	}
	r.journal.note(call)
	if f := r.fault.Load(); f != nil && *f != nil {
		return (*f)(ctx, op, req)
	}
	return nil
}

func (r *recorded) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := r.call(ctx, "take", &req); err != nil {
		return backend.Result{}, err
	}
	return r.Memory.Take(ctx, req)
}

func (r *recorded) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := r.call(ctx, "peek", &req); err != nil {
		return backend.Result{}, err
	}
	return r.Memory.Peek(ctx, req)
}

func (r *recorded) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if err := r.call(ctx, "refund", &req); err != nil {
		return err
	}
	return r.Memory.Refund(ctx, req, receipt, amount)
}

func (r *recorded) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	if err := r.call(ctx, "charge", &req); err != nil {
		return backend.Result{}, err
	}
	return r.Memory.Charge(ctx, req, mark)
}

func (r *recorded) Reset(ctx context.Context, req backend.Request) error {
	if err := r.call(ctx, "reset", &req); err != nil {
		return err
	}
	return r.Memory.Reset(ctx, req)
}

func (r *recorded) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := r.call(ctx, "load", &req); err != nil {
		return backend.Snapshot{}, err
	}
	return r.Memory.Load(ctx, req)
}

func (r *recorded) Seed(ctx context.Context, req backend.Request, st state.State) error {
	shown := req
	shown.Floor = &st // what the step looks at
	if err := r.call(ctx, "seed", &shown); err != nil {
		return err
	}
	return r.Memory.Seed(ctx, req, st)
}

func (r *recorded) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := r.call(ctx, "seal", &req); err != nil {
		return backend.Snapshot{}, err
	}
	return r.Memory.Seal(ctx, req)
}

func (r *recorded) Close() error {
	r.closes.Add(1)
	return r.Memory.Close()
}

// stage is two sides that several processes share.
type stage struct {
	*journal
	old, new *recorded
	clock    *backendtesting.Clock
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{journal: &journal{}, clock: backendtesting.NewClock()}
	cfg := memory.Config{Now: s.clock.Now}
	s.old = &recorded{Memory: backendtesting.NewMemory(t, cfg), name: "old", journal: s.journal}
	s.new = &recorded{Memory: backendtesting.NewMemory(t, cfg), name: "new", journal: s.journal}
	return s
}

// process is one more Dual over the same sides, with its own view of the flag.
func (s *stage) process(t testing.TB, l *lever, cfg dual.Config) *dual.Dual {
	t.Helper()
	cfg.Old, cfg.New, cfg.Decide, cfg.CarryOver = s.old, s.new, l.Decide, true
	return backendtesting.NewDual(t, cfg)
}

// lever is a flag for all keys. The zero lever is the old side under version 0.
type lever struct{ now atomic.Pointer[reading] }

type reading struct {
	version uint64
	useNew  bool
}

func (l *lever) set(version uint64, useNew bool) { l.now.Store(&reading{version, useNew}) }

func (l *lever) Decide(string) (useNew bool, version uint64) {
	if a := l.now.Load(); a != nil {
		return a.useNew, a.version
	}
	return false, 0
}

var ten = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}}

func takeTen(key string) backend.Request { return backend.Request{Key: key, Policy: ten, Cost: 1} }
