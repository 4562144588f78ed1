package backendtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit/state"
)

// tiny is the least that is a backend: a map of states behind a mutex. It has none of the optional interfaces.
type tiny struct {
	now func() time.Time

	mu     sync.Mutex // guards all below
	states map[[2]string]*state.State
	closed bool
}

func (b *tiny) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return backend.Result{}, backend.ErrClosed
	}
	if err := req.CheckTake(ctx); err != nil {
		return backend.Result{}, err
	}
	name := [2]string{req.Policy.Name, req.Key}
	st := b.states[name]
	if st == nil {
		st = new(state.State)
		b.states[name] = st
	}
	at := state.At{Micros: b.now().UnixMicro(), Phase: hash(req.Key)}
	if req.Floor != nil {
		st.Join(req.Policy, at, req.Floor)
	}
	return backend.Result{Verdict: st.Take(req.Policy, at, req.Cost), Now: at.Micros, Source: backend.Local}, nil
}

func (b *tiny) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

func openTiny(_ *testing.T, now func() time.Time) backend.Backend {
	return &tiny{now: now, states: make(map[[2]string]*state.State)}
}

// TestTiny is all that a backend's package needs.
func TestTiny(t *testing.T) {
	backendtest.Run(t, openTiny)
}

// A test of a backend calls Run with a function that opens it on the clock it is given, and names the optional
// interfaces that it must not lose:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, open, backendtest.Require[backend.Peeker]())
//	}
func ExampleRun() {
	open := func(t *testing.T, now func() time.Time) backend.Backend {
		b, err := memory.New(memory.Config{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tests := []testing.InternalTest{{Name: "TestConformance", F: func(t *testing.T) {
		backendtest.Run(t, open, backendtest.Require[backend.Peeker](), backendtest.Require[backend.Loader]())
	}}}
	_ = tests // in a file of its own, the go command finds it
	fmt.Println(len(tests), "test")
	// Output: 1 test
}
