package router

import (
	"context"
	"errors"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
)

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
