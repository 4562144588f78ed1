package envoylimit

import (
	"context"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// giveBack gives back hits of what is charged to a slot's key, whoever charged it. A refund names a charge by a receipt, so the
// stored state stands for one: it is as if the latest charge had cost all hits. The backend bounds a refund by what was charged in
// that window, so that refunds of several processes at once never make a count negative.
func (sl *slot) giveBack(ctx context.Context, counts backend.Backend) error {
	policy := sl.match.Rule.Policy
	req := backend.Request{Key: sl.match.Key, Policy: policy, Cost: 1}
	snapshot, err := backend.Load(ctx, counts, req)
	if err != nil {
		return err
	}
	now := snapshot.Peek(&req)
	sl.settle(throttler.NewDecision(&now), false)
	hits := min(sl.hits, policy.Limits[0].Quota())
	if hits == 0 {
		return nil
	}
	held := snapshot.State.Clone()
	charged := held.Taken(policy, state.Moment(policy, req.Key, snapshot.Now), hits, true)
	if err := backend.Refund(ctx, counts, req, charged.Receipt(), hits); err != nil {
		return err
	}
	held.Refund(state.Moment(policy, req.Key, snapshot.Now), new(charged.Receipt()), hits)
	snapshot.State = held
	now = snapshot.Peek(&req)
	sl.settle(throttler.NewDecision(&now), false)
	return nil
}
