package main

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/throttler"
)

// owing admits a twentieth of what remains before it is charged, in as many processes as the row has, without batches.
var owing = lease.Config{Slack: 0.05, Processes: 64, Batch: -1}

// creditPeers do the row in which each caller has a client of its own and keys are few: a process knows them all.
var creditPeers = []maker{
	{sluiceCredit, true, openCredit},
	{sluice, true, openSluice},
	{sluiceBackend, true, openSluiceBackend},
	{redisRate, false, openRedisRate},
	{ulule, false, openUlule},
}

// creditPeer is a Throttler on credit, whose decisions are bounded rather than exact.
type creditPeer struct {
	throttler *throttler.Throttler
	under     *sluiceBackendPeer
}

// openCredit also makes the first take of each key, which is a call: the row is about a process that has run for a while.
func openCredit(s Setup) (Peer, error) {
	under, err := newSluiceLease(s, owing)
	if err != nil {
		return nil, err
	}
	t, err := throttler.New(throttler.Config{Backend: under.backend, Policy: under.policy, Failure: throttler.FailError})
	if err != nil {
		return nil, errors.Join(err, under.Close())
	}
	p := &creditPeer{throttler: t, under: under}
	for _, key := range makeKeys(hotKeys) {
		if _, err := p.Take(context.Background(), key); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

func (p *creditPeer) Take(ctx context.Context, key string) (bool, error) {
	d, err := p.throttler.Allow(ctx, key)
	return d.Allowed, err
}

func (p *creditPeer) Close() error { return errors.Join(p.throttler.Close(), p.under.Close()) }
