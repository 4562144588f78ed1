package router

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
)

// TestJitter: the longest duration doesn't become a negative one, which would make a timer fire at once.
func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 1, time.Second, math.MaxInt64 - 1, math.MaxInt64} {
		least := time.Duration(float64(d) * 0.79)
		for range 100 {
			if got := jitter(d); got < least {
				t.Fatalf("jitter(%s) = %s", d, got)
			}
		}
	}
}

// TestShortestOpenFor: a breaker stays open for OpenFor, however short that is. For gobreaker 0 is a minute.
func TestShortestOpenFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			n := newNode(identity{}, RolePrimary, nil, Config{OpenFor: 1}.withDefaults(), nil)
			for range defaultTripAfter {
				_ = n.call(t.Context(), write, "x", func() error { return &backend.Error{Kind: backend.Unavailable, Err: errors.New("down")} })
			}
			time.Sleep(time.Millisecond)
			if state := n.breaker.State(); state != gobreaker.StateHalfOpen {
				t.Fatalf("%s after a millisecond", state)
			}
		}
	})
}

// TestOnlyHeartbeatsCountForACluster: calls about keys or topologies of one server that is down leave the breaker of a whole Redis
// Cluster closed; heartbeats open it.
func TestOnlyHeartbeatsCountForACluster(t *testing.T) {
	memory, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(identity{group: "a", name: "a", many: true}, RolePrimary, memory, Config{}.withDefaults(), nil)
	down := func() error { return &backend.Error{Op: "x", Kind: backend.Unavailable, Err: errors.New("down")} }
	for _, m := range []mode{write, read} {
		for range 50 {
			if err := n.call(context.Background(), m, "x", down); errors.Is(err, ErrBreakerOpen) {
				t.Fatalf("mode %d opened the breaker", m)
			}
		}
	}
	for range defaultTripAfter {
		_ = n.call(context.Background(), probe, "ping", down)
	}
	if err := n.call(context.Background(), write, "x", down); !errors.Is(err, ErrBreakerOpen) {
		t.Errorf("after failed heartbeats: %v", err)
	}
}
