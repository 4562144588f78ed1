package simulation

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// What is rare: requests of large costs, and resets.

// largeCost is from half of a process's allowance to one and a half, as far as the limits can hold it.
func (w *credit) largeCost(random *rand.Rand) int64 {
	cfg := &w.Lease
	bound := lease.BoundError{Slack: cfg.Slack, Processes: cfg.Processes, Least: cfg.Least}
	allowance, most := int64(limit.MaxCount), int64(limit.MaxCount)
	for _, l := range w.Limits {
		allowance, most = min(allowance, bound.Above(l)/int64(cfg.Processes)), min(most, l.Quota())
	}
	return min(max(1, allowance/2+random.Int64N(allowance+1)), most)
}

// take makes a request. With FirstPartOnly one that is denied is admitted all the same if 1 is on credit; the rest is charged
// afterwards.
func (w *credit) take(ls *lease.Lease, req *backend.Request) (backend.Result, error) {
	r, err := ls.Take(context.Background(), *req)
	if w.Plant != FirstPartOnly || req.Cost == 1 || err != nil || r.Allowed {
		return r, err
	}
	part := *req
	part.Cost = 1
	if r, err = ls.Take(context.Background(), part); err != nil || r.Source != backend.OnCredit {
		req.Cost = 1
		return r, err
	}
	receipt, rest := r.Receipt(), *req
	rest.Cost--
	go func() {
		time.Sleep(w.Lease.Flush)
		_, _ = ls.Charge(context.Background(), rest, receipt.Mark())
	}()
	return r, nil
}

// Reset implements [backend.Resetter].
func (l *creditLink) Reset(_ context.Context, req backend.Request) error {
	l.travel()
	if l.dead.Load() {
		return failed("reset", false)
	}
	l.do(&req, func(s *state.State, at state.At) {
		s.Reset(req.Policy, at)
		l.w.books[req.Key].reset(at.Micros)
		l.w.resets[req.Key] = time.Now()
		l.w.report.Resets++
	})
	l.travel()
	return nil
}

func (w *credit) sinceReset(key string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.resets[key])
}

// used is what a state holds, by limit.
func (w *credit) used(s *state.State, at state.At) (used []int64) {
	for i := range w.Limits {
		one, known := limit.Policy{Limits: w.Limits[i : i+1]}, s.Clone()
		v := known.Peek(&one, at, 1)
		used = append(used, one.Limits[0].Quota()-v.Binding().Remaining+known.Excess(&one, at))
	}
	return used
}

// refunded records by how much a refund has lowered what the server holds.
func (b *creditBook) refunded(receipt *state.Receipt, before, after []int64) {
	for i := range b.pages {
		if p := &b.pages[i]; p.limit.Algorithm != limit.Bucket {
			end, _, _ := receipt.Charge(i)
			p.at(end).refunded += before[i] - after[i]
		}
	}
}

// reset records that all is given back that the server holds of live windows.
func (b *creditBook) reset(now int64) {
	for i := range b.pages {
		for end, s := range b.pages[i].slots {
			if end > now {
				s.given += s.charged - s.refunded
				s.refunded = s.charged
			}
		}
	}
}
