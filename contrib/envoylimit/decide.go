package envoylimit

import (
	"context"
	"errors"
	"sync"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// decide fills in the decisions of all slots.
//
//  1. What is given back comes first: it may make room.
//  2. A limit of 0, a cost that never fits, or a check of which nothing is left denies the request before anything is charged.
//  3. What is charged by itself and enforced, because of overrun.
//  4. The rest that is enforced, all or none.
//  5. Shadows, if the request was admitted. After a denial what is not known is only peeked at, if the statuses are to be full.
func (c *call) decide(ctx context.Context, t *throttler.Throttler, counts backend.Backend) error {
	if err := c.each(ctx, func(sl *slot) bool { return sl.kind == giving }, func(ctx context.Context, sl *slot) error {
		return c.withoutVerdict(ctx, sl, sl.giveBack(ctx, t))
	}); err != nil {
		return err
	}
	for i := range c.slots {
		sl := &c.slots[i]
		if sl.over = sl.kind == blocked; sl.kind == charge && sl.tooMuch() && !sl.match.Rule.Overrun {
			if err := c.ofLists(ctx, sl, t); err != nil {
				return err
			}
		}
		if sl.over && !sl.shadow {
			c.denied = true
		}
	}
	if err := c.each(ctx, func(sl *slot) bool { return sl.kind == check }, func(ctx context.Context, sl *slot) error {
		err := sl.peek(ctx, t)
		sl.over = err == nil && !sl.decision.Allowed || err != nil && c.service.cfg.Throttler.Failure == throttler.FailClosed
		return c.withoutVerdict(ctx, sl, err)
	}); err != nil {
		return err
	}
	for i := range c.slots {
		if sl := &c.slots[i]; sl.kind == check && sl.over && !sl.shadow {
			c.denied = true
		}
	}
	if err := c.each(ctx, func(sl *slot) bool { return sl.charges() && sl.alone && !sl.shadow }, func(ctx context.Context, sl *slot) error {
		err := c.take(ctx, sl, t, counts)
		if sl.over { // which is the verdict, whether or not it could be charged
			err = c.withoutVerdict(ctx, sl, err)
		}
		return err
	}); err != nil {
		return err
	}
	for i := range c.slots {
		if sl := &c.slots[i]; sl.over && sl.alone && !sl.shadow {
			c.denied = true
		}
	}
	if !c.denied {
		if err := c.takeTogether(ctx, t, counts); err != nil {
			return err
		}
	}
	unknown := func(sl *slot) bool { return !sl.known && sl.kind == charge }
	if !c.denied {
		return c.each(ctx, func(sl *slot) bool { return sl.charges() && sl.shadow && unknown(sl) }, func(ctx context.Context, sl *slot) error {
			_ = c.take(ctx, sl, t, counts) // without a verdict a shadow says nothing
			return nil
		})
	}
	if !c.service.cfg.FullStatuses {
		return nil
	}
	return c.each(ctx, unknown, func(ctx context.Context, sl *slot) error {
		_ = sl.peek(ctx, t) // the request is denied with or without it
		return nil
	})
}

// withoutVerdict is what becomes of a failure to look or to give back, which charges nothing. In an outage the failure policy
// decides: only under FailError the request fails. Of a shadow it never does.
func (c *call) withoutVerdict(ctx context.Context, sl *slot, err error) error {
	_, outage := errors.AsType[*backend.Error](err)
	switch {
	case err == nil, ctx.Err() != nil, !outage:
		return err
	case sl.shadow, c.service.cfg.Throttler.Failure != throttler.FailError:
		c.service.stats.failed.Add(1)
		return nil
	}
	return err
}

// tooMuch reports whether the limit can never hold what the slot costs.
func (sl *slot) tooMuch() bool { return sl.hits > sl.match.Rule.Policy.Limits[0].Quota() }

// ofLists decides a slot that costs too much: only an allow list admits it. No call is made.
func (c *call) ofLists(ctx context.Context, sl *slot, t *throttler.Throttler) error {
	if !c.service.cfg.lists() {
		sl.over = true
		return nil
	}
	d, err := t.AllowN(with(ctx, sl), sl.match.Key, sl.hits)
	switch {
	case errors.Is(err, limit.ErrCostExceedsLimit):
		sl.over = true
		return nil
	case err == nil:
		sl.settle(d, d.Allowed)
		sl.over = !d.Allowed
	}
	return err
}

// charges reports whether the slot is still to be charged.
func (sl *slot) charges() bool { return sl.kind == charge && !sl.over && !sl.known }

// each calls f for some of the slots, concurrently if there are several.
func (c *call) each(ctx context.Context, which func(*slot) bool, f func(context.Context, *slot) error) error {
	var few [4]*slot
	chosen := few[:0]
	for i := range c.slots {
		if which(&c.slots[i]) {
			chosen = append(chosen, &c.slots[i])
		}
	}
	switch len(chosen) {
	case 0:
		return nil
	case 1:
		return f(ctx, chosen[0])
	}
	errs := make([]error, len(chosen))
	var all sync.WaitGroup
	for i, sl := range chosen {
		all.Go(func() { errs[i] = f(ctx, sl) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// settle fills in a decision, and whether it charged.
func (sl *slot) settle(d throttler.Decision, charged bool) {
	sl.decision, sl.known, sl.charged = d, true, charged
}

// peek looks at what is left.
func (sl *slot) peek(ctx context.Context, t *throttler.Throttler) error {
	d, err := t.Peek(with(ctx, sl), sl.match.Key)
	if err == nil {
		sl.settle(d, false)
	}
	return err
}

// take charges the slot by itself. With overrun what doesn't fit is charged all the same: it has been spent.
func (c *call) take(ctx context.Context, sl *slot, t *throttler.Throttler, counts backend.Backend) error {
	ctx = with(ctx, sl)
	rule := sl.match.Rule
	if sl.tooMuch() {
		if err := c.ofLists(ctx, sl, t); err != nil || !sl.over {
			return err
		}
	} else {
		d, err := t.AllowN(ctx, sl.match.Key, sl.hits)
		if err != nil {
			return err
		}
		sl.settle(d, d.Allowed)
		if sl.over = !d.Allowed; d.Allowed || d.Source == throttler.Fallback {
			return nil
		}
	}
	if !rule.Overrun {
		return nil
	}
	result, err := backend.Charge(ctx, counts, backend.Request{Key: sl.match.Key, Policy: rule.Policy, Cost: sl.hits}, state.Mark{})
	if err == nil {
		sl.settle(throttler.NewDecision(&result), true)
	}
	return err
}

// takeTogether charges the slots that are enforced, all or none. Those of one cost are one AllowAll; if there are several costs,
// what the first have charged is given back when a later one denies.
func (c *call) takeTogether(ctx context.Context, t *throttler.Throttler, counts backend.Backend) error {
	var few [4]*slot
	rest := few[:0]
	for i := range c.slots {
		if sl := &c.slots[i]; sl.charges() && !sl.alone {
			rest = append(rest, sl)
		}
	}
	if len(rest) == 1 {
		if err := c.take(ctx, rest[0], t, counts); err != nil {
			return err
		}
		c.denied = rest[0].over
		return nil
	}
	var charged []*throttler.Reservation
	var of [][]*slot
	for len(rest) > 0 {
		var group []*slot
		group, rest = together(rest)
		r, allowed, err := reserve(ctx, t, group, len(rest) == 0)
		if allowed && err == nil {
			charged, of = append(charged, r), append(of, group)
			continue
		}
		for i, r := range charged {
			c.cancel(ctx, r, of[i])
		}
		c.denied = true
		return err
	}
	return nil
}

// together splits slots into those that are one AllowAll with the first, and the rest: of one cost, and no key with two policies.
func together(slots []*slot) (group, rest []*slot) {
	for _, sl := range slots {
		fits := sl.hits == slots[0].hits
		for _, other := range group {
			fits = fits && (other.match.Key != sl.match.Key || other.match.Rule.Policy == sl.match.Rule.Policy)
		}
		if fits {
			group = append(group, sl)
		} else {
			rest = append(rest, sl)
		}
	}
	return group, rest
}

// reserve charges slots of one cost, all or none, and fills in what the observer sees of each. What the last slots of a request
// have charged is never given back, so they have no Reservation.
func reserve(ctx context.Context, t *throttler.Throttler, group []*slot, last bool) (r *throttler.Reservation, allowed bool, err error) {
	keys := make([]string, len(group))
	for i, sl := range group {
		keys[i] = sl.match.Key
	}
	var d throttler.Decision
	if last {
		d, err = t.AllowAll(with(ctx, group...), keys, group[0].hits)
	} else if r, err = t.ReserveAll(with(ctx, group...), keys, group[0].hits); err == nil {
		d = r.Decision()
	}
	if err != nil {
		return nil, false, err
	}
	if len(group) == 1 { // which the observer leaves alone
		group[0].settle(d, d.Allowed)
	}
	if d.Allowed {
		return r, true, nil
	}
	for _, sl := range group {
		switch {
		case !sl.known:
		case sl.decision.Allowed:
			sl.returned()
		default:
			sl.over = true
		}
	}
	if overs(group) == 0 { // a list denied before any key was asked
		for _, sl := range group {
			sl.over = true
			sl.settle(d, false)
		}
	}
	return r, false, nil
}

func overs(group []*slot) (n int) {
	for _, sl := range group {
		if sl.over {
			n++
		}
	}
	return n
}

// returned says that the charge of a slot was given back.
func (sl *slot) returned() {
	sl.charged = false
	if l := &sl.decision.Limit; l.Max > 0 {
		sl.decision.Remaining = min(l.Quota(), sl.decision.Remaining+sl.hits)
	}
}

// cancel gives back what was charged, even if the caller is gone. Where that fails the charge stays until its windows end; the
// verdict on the request is known without it.
func (c *call) cancel(ctx context.Context, r *throttler.Reservation, group []*slot) {
	if err := r.Cancel(context.WithoutCancel(ctx)); err != nil {
		c.service.stats.failed.Add(1)
		c.service.cfg.Throttler.Logger.Warn("sluice: the charge of a denied request was not given back", "err", err)
		return
	}
	for _, sl := range group {
		sl.returned()
	}
}

// groupKey is the key of the slots of a call to a Throttler in its context.
type groupKey struct{}

func with(ctx context.Context, group ...*slot) context.Context {
	return context.WithValue(ctx, groupKey{}, group)
}

// policyFor is the policy of a key of the request under way.
func policyFor(ctx context.Context, key string) *limit.Policy {
	group, _ := ctx.Value(groupKey{}).([]*slot)
	for _, sl := range group {
		if sl.match.Key == key {
			return sl.match.Rule.Policy
		}
	}
	return nil
}

// recorder is an observer that hands the decision on each key of a ReserveAll to its slot.
type recorder struct{}

func (recorder) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

func (recorder) End(ctx context.Context, e *throttler.Event) {
	group, _ := ctx.Value(groupKey{}).([]*slot)
	if e.Op != throttler.OpTake || e.Err != nil || len(group) < 2 {
		return
	}
	for _, sl := range group {
		if !sl.known && sl.match.Key == e.Key {
			sl.settle(e.Decision, e.Decision.Allowed)
			return
		}
	}
}
