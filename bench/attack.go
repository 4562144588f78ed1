package main

import (
	"context"
	"errors"
	"math/rand/v2"
)

// An attack is many clients far over their limits. The requests of each reach all instances of a service alike, which
// have nothing in common but Redis.
const (
	attackers = 200
	instances = 8
)

// fleet is a peer for each instance, every one with connections of its own.
type fleet []Peer

func fleetOf(open func(Setup) (Peer, error)) func(Setup) (Peer, error) {
	return func(s Setup) (Peer, error) { return newFleet(instances, s, open) }
}

func newFleet(n int, s Setup, open func(Setup) (Peer, error)) (fleet, error) {
	f := make(fleet, 0, n)
	for range n {
		p, err := open(s)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f = append(f, p)
	}
	return f, nil
}

// clients is a fleet whose instances have one caller each.
type clients struct{ fleet }

func clientsOf(n int, open func(Setup) (Peer, error)) func(Setup) (Peer, error) {
	return func(s Setup) (Peer, error) {
		f, err := newFleet(n, s, open)
		return clients{f}, err
	}
}

// of is a caller's own instance.
func (c clients) of(caller int) Peer { return c.fleet[caller%len(c.fleet)] }

// Take asks one of the instances, as a load balancer would.
func (f fleet) Take(ctx context.Context, key string) (bool, error) {
	return f[rand.IntN(len(f))].Take(ctx, key)
}

func (f fleet) Close() error {
	errs := make([]error, len(f))
	for i, p := range f {
		errs[i] = p.Close()
	}
	return errors.Join(errs...)
}
