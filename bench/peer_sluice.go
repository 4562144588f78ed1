package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// sluiceTimeout is as long as go-redis waits for a reply by default: what a take costs counts here, not when a call on
// a busy machine is given up.
const sluiceTimeout = 5 * time.Second

func sluicePolicy(quotas []Quota) limit.Policy {
	policy := limit.Policy{Name: "bench"}
	for _, q := range quotas {
		l := limit.Fixed(q.Max, q.Window)
		if q.Precision != 0 {
			l = limit.Sliding(q.Max, q.Window, q.Precision)
		}
		policy.Limits = append(policy.Limits, l)
	}
	return policy
}

// sluiceBackendPeer is a backend alone, with the request that a Throttler would make.
type sluiceBackendPeer struct {
	backend backend.Backend
	policy  limit.Policy
	setup   Setup
}

func openSluiceBackend(s Setup) (Peer, error) { return newSluiceBackend(s, nil) }

func newSluiceBackend(s Setup, now func() time.Time) (*sluiceBackendPeer, error) {
	b, err := redisbackend.Open(s.clientOptions(), redisbackend.Config{Timeout: sluiceTimeout, Now: now})
	if err != nil {
		return nil, err
	}
	return &sluiceBackendPeer{backend: b, policy: sluicePolicy(s.Quotas), setup: s}, nil
}

func openSluiceMemoryBackend(s Setup) (Peer, error) {
	b, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	return &sluiceBackendPeer{backend: b, policy: sluicePolicy(s.Quotas), setup: s}, nil
}

func (p *sluiceBackendPeer) Take(ctx context.Context, key string) (bool, error) {
	r, err := p.backend.Take(ctx, backend.Request{Key: key, Policy: &p.policy, Cost: 1})
	return r.Allowed, err
}

func (p *sluiceBackendPeer) Close() error { return p.backend.Close() }

func (p *sluiceBackendPeer) At(now time.Time) (Peer, error) {
	return newSluiceBackend(p.setup, func() time.Time { return now })
}

// sluicePeer is what an application uses: a Throttler. A failure of the backend is an error, not another's verdict.
type sluicePeer struct {
	throttler *throttler.Throttler
	under     *sluiceBackendPeer
}

func openSluice(s Setup) (Peer, error) { return withThrottler(newSluiceBackend(s, nil)) }

func openSluiceMemory(s Setup) (Peer, error) {
	under, err := openSluiceMemoryBackend(s)
	if err != nil {
		return nil, err
	}
	return newSluice(under.(*sluiceBackendPeer))
}

func withThrottler(under *sluiceBackendPeer, err error) (Peer, error) {
	if err != nil {
		return nil, err
	}
	return newSluice(under)
}

func newSluice(under *sluiceBackendPeer) (Peer, error) {
	t, err := throttler.New(throttler.Config{Backend: under.backend, Policy: under.policy, Failure: throttler.FailError})
	if err != nil {
		return nil, errors.Join(err, under.Close())
	}
	return &sluicePeer{throttler: t, under: under}, nil
}

func (p *sluicePeer) Take(ctx context.Context, key string) (bool, error) {
	d, err := p.throttler.Allow(ctx, key)
	if err == nil && d.Guarantee != backend.Exact {
		return false, fmt.Errorf("the decision is %s, not exact: %w", d.Guarantee, d.Cause)
	}
	return d.Allowed, err
}

func (p *sluicePeer) Close() error { return errors.Join(p.throttler.Close(), p.under.Close()) }

// At needs no Throttler: it stores what this one would.
func (p *sluicePeer) At(now time.Time) (Peer, error) { return p.under.At(now) }
