package throttler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// giveBackTimeout bounds the refunds of AllowAll, which outlive the caller's context.
const giveBackTimeout = time.Second

// AllowAll is AllowN on several keys that must all admit the request, such as a user and an address. The order of the keys
// doesn't matter. The charge is not atomic: the keys are charged one after the other, because they may be counted in different
// places, and the charges are given back when a later key denies. A denial may therefore be short-lived, because of another
// request's charge that is given back. If that request is of this process, RetryAfter is at most 100 ms.
//
// Each key has its own policy. A key listed twice is charged twice. A key on a deny list denies the request before any key is
// charged.
//
// Keys are charged in the order of what this process knows to be left of them, the least first, so that an exhausted key
// doesn't take quota of the others. If nothing is known of a key, at most one call of this process at a time charges others
// without a Peek at it first, which takes one round trip, and at most Config.Timeout and one second. A charge that is given
// back is missing to others for about two round trips, or longer if the backend is slow.
//
// The decision on a denied request is that of the key that denied. On an admitted request it is the one with the least left,
// with the weakest guarantee of all. With several keys the backend must be a backend.Refunder; it should be a backend.Peeker.
func (t *Throttler) AllowAll(ctx context.Context, keys []string, cost int64) (Decision, error) {
	if _, ok := t.backend.(backend.Refunder); len(keys) > 1 && !ok {
		return Decision{}, fmt.Errorf("throttler: allow all: %w", ErrUnsupported)
	}
	d, _, err := t.takeAll(ctx, t.view(), keys, cost, false)
	return d, err
}

// takeAll charges every key, or none. Refundable is whether the charges may be given back later.
func (t *Throttler) takeAll(
	ctx context.Context, view PolicyView, keys []string, cost int64, refundable bool,
) (Decision, []charge, error) {
	if t.enter() {
		defer t.calls.Done()
	}
	var few [4]part
	parts := few[:min(len(keys), len(few))]
	if len(keys) > len(few) {
		parts = make([]part, len(keys))
	}
	if d, refused, err := t.refusesOne(ctx, view, keys, cost, parts); refused {
		return d, nil, err
	}
	several, begun, given := len(parts) > 1, 0, 0
	if several {
		t.order(ctx, view, parts, cost)
		begun = 1
		defer func() {
			for i := given; i < begun; i++ {
				t.provisionals.end(&parts[i], false)
			}
		}()
	}
	var least, weakest Decision
	leastAt, weakestAt := 0, 0
	charges := make([]charge, 0, len(keys))
	for i := range parts {
		p := &parts[i]
		if i > 0 {
			t.provisionals.begin(p)
			begun++
		}
		var d Decision
		c := charge{ownCalls: ownCalls(parts[:begun], p)}
		req, err := p.request(cost), p.err
		if ended := t.usable(ctx); ended != nil {
			err = ended
		}
		err = t.resolveObserved(ctx, t.now(), view, &req, err, &d, &c)
		if several && err == nil {
			t.provisionals.record(p, &d, c.temporary)
		}
		if err != nil || !d.Allowed {
			c.event.free()
			given = len(charges)
			t.giveAllBack(ctx, charges, parts)
			return d, nil, err
		}
		if several {
			t.provisionals.charged(p)
		}
		c.key = p.at
		charges = append(charges, c)
		if i == 0 || d.Remaining < least.Remaining || d.Remaining == least.Remaining && p.at < leastAt {
			least, leastAt = d, p.at
		}
		if i == 0 || d.Guarantee > weakest.Guarantee || d.Guarantee == weakest.Guarantee && p.at < weakestAt {
			weakest, weakestAt = d, p.at
		}
	}
	for i := range charges {
		charges[i].settler = t.commit(charges[i].event, refundable)
	}
	least.Guarantee, least.Cause = weakest.Guarantee, weakest.Cause
	return least, charges, nil
}

// refusesOne fills in parts, and reports whether one of the keys is bad input or on a deny list, which refuses the request. No
// key is charged before all are checked, or a caller who is denied could use up the quota of others.
func (t *Throttler) refusesOne(
	ctx context.Context, view PolicyView, keys []string, cost int64, parts []part,
) (d Decision, refused bool, err error) {
	start := t.now()
	if len(keys) == 0 {
		req, _ := t.request(ctx, view, "", cost)
		err = &limit.Error{Field: "keys", Value: "none", Bound: "must hold at least one key"}
		err = t.resolveObserved(ctx, start, view, &req, err, &d, nil)
		return d, true, err
	}
	var denied *part
	for i, key := range keys {
		p := &parts[i]
		*p = part{at: i, key: key}
		p.policy, p.err = t.policy(ctx, view, key, cost)
		req := p.request(cost)
		p.hash = t.provisionals.hash(&req)
		if listed := t.listed(view, key, p.err, &d); p.err != nil && !listed {
			err = t.resolveObserved(ctx, start, view, &req, p.err, &d, nil)
			return d, true, err
		} else if listed && !d.Allowed {
			denied = p
		}
		d = Decision{}
	}
	if denied == nil {
		return d, false, nil
	}
	req := denied.request(cost)
	err = t.resolveObserved(ctx, start, view, &req, denied.err, &d, nil) // calls no backend
	return d, true, err
}

// giveAllBack gives the charges of the first parts back concurrently. It returns when that is done or the caller's context has
// ended, and goes on in the background; each part ends with its refund. A charge whose refund fails stays until its windows end.
func (t *Throttler) giveAllBack(ctx context.Context, charges []charge, parts []part) {
	if len(charges) == 0 {
		return
	}
	refunds, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	given := slices.Clone(parts[:len(charges)]) // or parts would always be allocated
	var all sync.WaitGroup
	for i := range charges {
		charges[i].event.free()
		all.Go(func() {
			err := t.giveBack(refunds, &charges[i], charges[i].receipt.Cost)
			if err != nil {
				t.lost.warn(refunds, t.now(), "sluice: a charge of AllowAll could not be given back", err)
			}
			t.provisionals.end(&given[i], err == nil)
		})
	}
	done := make(chan struct{})
	t.calls.Go(func() {
		all.Wait()
		cancel()
		close(done)
	})
	ctx, stop := t.timeout(ctx)
	defer stop()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
