package main

import (
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
)

// thousandths gives batches of a thousandth of Max, which don't grow.
var thousandths = lease.Config{Steady: true}

// impatient asks for a denied key again five times as often as by default: turns are shorter than a second, and would
// never see it.
var impatient = lease.Config{Steady: true, Recheck: 200 * time.Millisecond}

func leaseBackend(cfg lease.Config) func(Setup) (Peer, error) {
	return func(s Setup) (Peer, error) { return newSluiceLease(s, cfg) }
}

func overRedis(cfg lease.Config) func(Setup) (Peer, error) {
	return func(s Setup) (Peer, error) { return withThrottler(newSluiceLease(s, cfg)) }
}

// newSluiceLease is the backend that sluice-backend is, with a Lease over it.
func newSluiceLease(s Setup, cfg lease.Config) (*sluiceBackendPeer, error) {
	p, err := newSluiceBackend(s, nil)
	if err != nil {
		return nil, err
	}
	over, err := lease.New(p.backend, cfg)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.backend = over
	return p, nil
}
