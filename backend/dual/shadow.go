package dual

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/workqueue"
	"github.com/sluice-go/sluice/limit"
)

// shadows asks the side that doesn't decide what it would have decided. Its calls count under policy names that no
// policy can have, so that no decision knows of them.
type shadows struct {
	queue *workqueue.Queue[shadow]

	agreed, denied, allowed, remaining, failed, dropped atomic.Int64
}

// ShadowStats counts shadow calls by what came of them.
type ShadowStats struct {
	Agreed    int64 `json:"agreed"`    // the same verdict, and the same quota left
	Denied    int64 `json:"denied"`    // it would have denied what was allowed
	Allowed   int64 `json:"allowed"`   // it would have allowed what was denied
	Remaining int64 `json:"remaining"` // the same verdict, but another quota left
	Failed    int64 `json:"failed"`    // no verdict
	Dropped   int64 `json:"dropped"`   // not made: too many were waiting, or Close came first
}

// shadow is one question, and what was decided.
type shadow struct {
	backend   backend.Backend
	policy    *limit.Policy
	cost      int64
	allowed   bool
	remaining int64
}

func newShadows(queue, workers int) *shadows {
	s := &shadows{}
	s.queue = workqueue.New(queue, workers, s.compare)
	return s
}

// ask leaves a question behind if there is room.
func (s *shadows) ask(side *side, req *backend.Request, decided *backend.Result) {
	if s.queue.Full() || !s.queue.Add(req.Key, shadow{
		backend: side.Backend, cost: req.Cost, allowed: decided.Allowed, remaining: decided.Binding().Remaining,
		// The caller may change its policy once the take returns.
		policy: &limit.Policy{Name: "~" + req.Policy.Name, Limits: slices.Clone(req.Policy.Limits)},
	}) {
		s.dropped.Add(1)
	}
}

func (s *shadows) compare(ctx context.Context, key string, q shadow) {
	result, err := q.backend.Take(ctx, backend.Request{Key: key, Policy: q.policy, Cost: q.cost})
	switch {
	case err != nil:
		s.failed.Add(1)
	case q.allowed && !result.Allowed:
		s.denied.Add(1)
	case !q.allowed && result.Allowed:
		s.allowed.Add(1)
	case q.remaining != result.Binding().Remaining:
		s.remaining.Add(1)
	default:
		s.agreed.Add(1)
	}
}

func (s *shadows) stats() ShadowStats {
	return ShadowStats{
		Agreed: s.agreed.Load(), Denied: s.denied.Load(), Allowed: s.allowed.Load(),
		Remaining: s.remaining.Load(), Failed: s.failed.Load(), Dropped: s.dropped.Load(),
	}
}
