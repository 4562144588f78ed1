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
	return func(s Setup) (Peer, error) {
		f := make(fleet, 0, instances)
		for range instances {
			p, err := open(s)
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			f = append(f, p)
		}
		return f, nil
	}
}

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
