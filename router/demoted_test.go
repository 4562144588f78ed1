package router_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// peeking is a node that can be peeked at, too.
type peeking struct{ beating }

func (p peeking) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := p.enter(ctx, "peek"); err != nil {
		return backend.Result{}, err
	}
	return p.store.Peek(ctx, req)
}

// TestDemotedPrimaryIsReadAsAReplica: what a primary says that calls itself a replica may lag.
func TestDemotedPrimaryIsReadAsAReplica(t *testing.T) {
	for name, make := range map[string]func(beating) backend.Backend{
		"loaded": func(b beating) backend.Backend { return b },
		"peeked": func(b beating) backend.Backend { return peeking{b} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary := newPrimary(memory(t))
				r := open(t, []router.Nodes{{Name: "a", Primary: make(primary)}}, router.Config{})
				expect := func(source backend.Source, allowed bool, guarantee backend.Guarantee, cause error) {
					t.Helper()
					time.Sleep(3 * time.Second) // a heartbeat, and more than a breaker stays open
					got, err := r.Peek(t.Context(), request("k"))
					if err != nil || got.Source != source || got.Allowed != allowed || got.Guarantee != guarantee || got.Cause != cause {
						t.Errorf("allowed %v by %v, %v because of %v, %v; want %v by %v, %v because of %v",
							got.Allowed, got.Source, got.Guarantee, got.Cause, err, allowed, source, guarantee, cause)
					}
					if loaded, err := r.Load(t.Context(), request("k")); err != nil || loaded.Source != source {
						t.Errorf("loaded from %v, %v; want %v", loaded.Source, err, source)
					}
				}
				demote := func(yes bool) { primary.set(func(c *counts) { c.beat.Primary = !yes }) }
				expect(backend.Primary, true, backend.Exact, nil)
				demote(true)
				expect(backend.Replica, true, backend.Bounded, backend.ErrReplicaMayLag)
				demote(false)
				expect(backend.Primary, true, backend.Exact, nil)
				for range 5 {
					if err := take(t, r); err != nil {
						t.Fatal(err)
					}
				}
				demote(true)
				expect(backend.Replica, false, backend.Exact, nil) // what it denies is true
			})
		})
	}
}
