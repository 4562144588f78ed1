package router_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// A router that is stopped by a conflicting topology sends nothing, and its error says so: a reservation made before can be
// settled as soon as a newer topology lets calls through again.
func TestReservationOutlivesATopologyConflict(t *testing.T) {
	p, ctx := newPlant(), context.Background()
	r := p.open(t, topo(3, 1, 2, 3), router.Config{})
	th, err := throttler.New(throttler.Config{Backend: r, Policy: *tenAnHour})
	if err != nil {
		t.Fatal(err)
	}
	defer th.Close()
	held, err := th.Reserve(ctx, "k", 6)
	if err != nil || !held.Decision().Allowed || held.Decision().Source != throttler.Primary {
		t.Fatalf("reserved %+v, %v", held.Decision(), err)
	}

	await(t, "it has synced", func() bool { // looked, looked again, published, and looked what is there then
		return p.machine("10.0.0.1:6379").looks.Load() == 3 && p.machine("10.0.0.2:6379").looks.Load() == 3 &&
			p.machine("10.0.0.3:6379").looks.Load() == 3
	})
	for g := 1; g <= 3; g++ { // somebody else has epoch 4 already, with other groups
		publish(t, p.machine(fmt.Sprintf("10.0.0.%d:6379", g)), topo(4, 1, 2))
	}
	update(t, r, topo(4, 1, 2, 3))
	req := backend.Request{Key: "other", Policy: tenAnHour, Cost: 1}
	await(t, "the router stops", func() bool {
		_, err := r.Take(ctx, req)
		return errors.Is(err, router.ErrTopologyConflict)
	})
	err = held.Settle(ctx, 1)
	typed, ok := errors.AsType[*backend.Error](err)
	if !ok || typed.Kind != backend.Misconfigured || typed.MayHaveCharged || !errors.Is(err, router.ErrTopologyConflict) {
		t.Errorf("Settle = %v, want a conflict that is typed as configuration and known as unsent", err)
	}
	if _, ok := errors.AsType[*router.ConfigError](err); !ok {
		t.Errorf("Settle = %v, want the topology named by a ConfigError", err)
	}

	if err := th.Ping(ctx); !errors.Is(err, router.ErrTopologyConflict) {
		t.Errorf("Ping = %v, want the conflict: no call would be made", err)
	}

	update(t, r, topo(5, 1, 2, 3))
	if err := held.Settle(ctx, 1); err != nil {
		t.Fatalf("Settle under a newer topology = %v", err)
	}
	d, err := th.Peek(ctx, "k")
	if err != nil || d.Remaining != 9 {
		t.Errorf("%d remain, %v, want 9: the reservation of 6 was settled to 1", d.Remaining, err)
	}
	if err := held.Settle(ctx, 1); !errors.Is(err, throttler.ErrSettled) {
		t.Errorf("settled again: %v", err)
	}
}
