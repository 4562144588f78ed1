package main

import (
	"context"
	"sync"

	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"
)

// sethvargoPeer is sethvargo/go-limiter's memory store.
type sethvargoPeer struct {
	store limiter.Store
}

func openSethvargo(s Setup) (Peer, error) {
	q := s.Quotas[0]
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(q.Max), Interval: q.Window})
	if err != nil {
		return nil, err
	}
	return &sethvargoPeer{store: store}, nil
}

func (p *sethvargoPeer) Take(ctx context.Context, key string) (bool, error) {
	_, _, _, ok, err := p.store.Take(ctx, key)
	return ok, err
}

func (p *sethvargoPeer) Close() error { return p.store.Close(context.Background()) }

// xTimeRatePeer is what most services write: a limiter of golang.org/x/time/rate for each key, in a map that grows for
// ever. Its lock is not held while the limiter decides.
type xTimeRatePeer struct {
	rate  rate.Limit
	burst int

	mu       sync.RWMutex // guards limiters
	limiters map[string]*rate.Limiter
}

func openXTimeRate(s Setup) (Peer, error) {
	q := s.Quotas[0]
	return &xTimeRatePeer{
		rate: rate.Limit(float64(q.Max) / q.Window.Seconds()), burst: int(q.Max), limiters: make(map[string]*rate.Limiter),
	}, nil
}

func (p *xTimeRatePeer) Take(_ context.Context, key string) (bool, error) {
	p.mu.RLock()
	l := p.limiters[key]
	p.mu.RUnlock()
	if l == nil {
		p.mu.Lock()
		if l = p.limiters[key]; l == nil {
			l = rate.NewLimiter(p.rate, p.burst)
			p.limiters[key] = l
		}
		p.mu.Unlock()
	}
	return l.Allow(), nil
}

func (p *xTimeRatePeer) Close() error { return nil }
