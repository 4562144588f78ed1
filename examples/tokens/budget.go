package main

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// budget is what a tenant may use in a minute: tokens of the model, and requests. One policy charges one cost to all of its
// limits, so two costs need two Throttlers; they share a backend.
type budget struct {
	tokens, requests *throttler.Throttler
}

func newBudget(counts backend.Backend, tokens, requests int64) (*budget, error) {
	b := new(budget)
	for _, part := range []struct {
		to   **throttler.Throttler
		name string
		max  int64
	}{{&b.tokens, "tokens", tokens}, {&b.requests, "requests", requests}} {
		t, err := throttler.New(throttler.Config{
			Backend: counts,
			Policy:  limit.Policy{Name: part.name, Limits: []limit.Limit{limit.PerMinute(part.max).Aligned()}},
			// An estimate above the whole budget is no reason to refuse.
			ClampReserve: true,
		})
		if err != nil {
			b.close()
			return nil, err
		}
		*part.to = t
	}
	return b, nil
}

func (b *budget) close() {
	for _, t := range []*throttler.Throttler{b.tokens, b.requests} {
		if t != nil {
			_ = t.Close()
		}
	}
}

// charge is a request that was admitted. Settle or cancel it once.
type charge struct{ tokens, request *throttler.Reservation }

// reserve charges a request and the tokens that it is expected to cost. The decision is that of the budget that denied.
func (b *budget) reserve(ctx context.Context, tenant string, estimate int64) (*charge, throttler.Decision, error) {
	request, err := b.requests.Reserve(ctx, tenant, 1)
	if err != nil {
		return nil, throttler.Decision{}, err
	}
	if d := request.Decision(); !d.Allowed {
		return nil, d, nil
	}
	tokens, err := b.tokens.Reserve(ctx, tenant, estimate)
	if err != nil || !tokens.Decision().Allowed {
		giveBack, cancel := afterwards(ctx)
		defer cancel()
		_ = request.Cancel(giveBack) // at worst it counts until the minute ends
		if err != nil {
			return nil, throttler.Decision{}, err
		}
		return nil, tokens.Decision(), nil
	}
	return &charge{tokens, request}, tokens.Decision(), nil
}

// settle makes the charge what the work has cost, also where that is more than was reserved.
func (c *charge) settle(ctx context.Context, tokens int64) error {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	return c.tokens.Settle(ctx, tokens)
}

// cancel gives everything back: the model has done nothing.
func (c *charge) cancel(ctx context.Context) error {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	if err := c.tokens.Cancel(ctx); err != nil {
		return err
	}
	return c.request.Cancel(ctx)
}

// afterwards outlives the request: a client that left is charged, too.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}

// estimator expects the output that answers had lately. Estimates are wrong both ways: what is too much is given back, and what
// is too little is charged, both by Settle.
type estimator struct {
	mu   sync.Mutex
	mean float64
}

// firstOutput is the estimate of the first answer.
const firstOutput = 256

// margin is above 1 because the answers that are still under way are those that take long. A larger one goes over the budget less
// often, and denies more that would have fitted.
const margin = 1.5

// estimate is what a request is expected to cost; most is the largest output that the client accepts.
func (e *estimator) estimate(prompt, most int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mean == 0 {
		e.mean = firstOutput
	}
	return prompt + min(int64(margin*e.mean), most)
}

// learn takes note of an output, with a weight of a tenth.
func (e *estimator) learn(output int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mean += (float64(output) - e.mean) / 10
}
