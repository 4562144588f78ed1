package router

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
)

// relocate puts in force that a group has its nodes where its sentinels say. Keys keep their owner: the topology, its epoch
// and the ring stay.
func (r *Router) relocate(f *follower, at sighting) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.closed.Load() {
		return nil // nobody will ask
	}
	s := r.snapshot.Load()
	m := r.opener.maker(s)
	primary, replicas := m.node(f.name, at.primary, RolePrimary), m.replicas(f.name, at.replicas)
	if err := m.end(); err != nil {
		return err
	}
	moved := func(weight int) *group {
		g := newGroup(f.name, weight, primary, replicas, r.cfg)
		g.follower = f
		return g
	}
	before := f.group.Swap(moved(0))
	next := s.relocated(func(g *group) *group {
		if g.follower != f {
			return nil
		}
		return moved(g.weight)
	})
	r.enforceLocked(next)
	r.retire(s, next)
	switch {
	case before == nil:
		close(f.ready)
		r.events.emit(Event{Kind: PrimaryChanged, Group: f.name, Node: at.primary, To: at.primary})
	case before.primary != primary:
		r.events.emit(Event{Kind: PrimaryChanged, Group: f.name, Node: at.primary, From: before.primary.name, To: at.primary})
	}
	r.spread() // what a primary was told may be lost with the one before it
	return nil
}

// follower finds or makes the follower of a group with sentinels.
func (m *maker) follower(g *Group) *follower {
	for _, f := range m.followers {
		if f.follows(g) {
			return f
		}
	}
	f := newFollower(g, m.cfg, m.events, m.relocate)
	m.followers = append(m.followers, f)
	return f
}

// followed makes a group of the nodes that its follower knows. Before it knows any, the group is pending.
func (m *maker) followed(name string, weight int, f *follower) *group {
	var g *group
	if now := f.group.Load(); now != nil {
		g = newGroup(name, weight, now.primary, now.replicas, m.cfg)
	} else {
		g = newGroup(name, weight, m.nobody(f), nil, m.cfg)
		g.pending = true
	}
	g.follower = f
	return g
}

// nobody is the node that stands for a primary which is not known yet. Its breaker spares callers the wait while no
// sentinel answers.
func (m *maker) nobody(f *follower) *node {
	for _, n := range m.nodes {
		if b, ok := n.backend.(nobody); ok && b.follower == f {
			return n
		}
	}
	n := newNode(identity{group: f.name, name: "unknown"}, RolePrimary, nobody{f}, m.cfg, m.events)
	n.watched = false
	m.nodes, m.made = append(m.nodes, n), append(m.made, n)
	return n
}

type nobody struct{ *follower }

// Take implements [backend.Backend]. No call comes here: the group waits before it.
func (nobody) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, Err: ErrNoPrimary}
}

// Ping asks the primary once that is known.
func (b nobody) Ping(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	g, err := b.wait(limited, "ping")
	if err != nil {
		return own(ctx, err)
	}
	if pinger, ok := g.primary.backend.(backend.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

func (nobody) Close() error { return nil }

// wait returns the group once its primary is known.
func (f *follower) wait(ctx context.Context, op string) (*group, error) {
	select {
	case <-f.ready:
		return f.group.Load(), nil
	case <-ctx.Done():
		return nil, &backend.Error{
			Op: op, Node: f.name + "/unknown", Kind: backend.Interrupted, Err: errors.Join(ErrNoPrimary, ctx.Err()),
		}
	}
}

// later makes a call of a pending group once its primary is known, all within a timeout.
func later[T any](ctx context.Context, g *group, timeout time.Duration, op string, call func(context.Context, *group) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now := g.follower.group.Load()
	if now == nil {
		err := g.primary.guard(op, func() (err error) {
			now, err = g.follower.wait(limited, op)
			return own(ctx, err)
		})
		if err != nil {
			var none T
			return none, err
		}
	}
	result, err := call(limited, now)
	return result, own(ctx, err)
}

// own types the end of a timeout that is not the caller's.
func own(ctx context.Context, err error) error {
	if typed, ok := errors.AsType[*backend.Error](err); ok && typed.Kind == backend.Interrupted && ctx.Err() == nil {
		late := *typed
		late.Kind = backend.Unavailable
		return &late
	}
	return err
}

// failed looks whether an error of the primary says that it is none any more. The sentinels may know already.
func (g *group) failed(err error) error {
	var reply redis.Error
	if g.follower != nil && errors.As(err, &reply) && strings.Contains(reply.Error(), "READONLY") { // Redis 6 has the script before it
		g.follower.suspect()
	}
	return err
}
