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
func (r *Router) adoptView(f *sentinelWatcher, at sentinelView) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.closed.Load() {
		return nil // nobody will ask
	}
	s := r.table.Load()
	m := r.opener.builder(s)
	primary, replicas := m.node(f.name, at.primary, RolePrimary), m.replicas(f.name, at.replicas)
	if err := m.finish(); err != nil {
		return err
	}
	moved := func(weight int) *group {
		g := newGroup(f.name, weight, primary, replicas, r.cfg)
		g.watcher = f
		return g
	}
	before := f.group.Swap(moved(0))
	next := s.withGroups(func(g *group) *group {
		if g.watcher != f {
			return nil
		}
		return moved(g.weight)
	})
	r.installLocked(next)
	r.closeUnused(s, next)
	switch {
	case before == nil:
		close(f.ready)
		r.events.emit(Event{Kind: PrimaryChanged, Group: f.name, Node: at.primary, To: at.primary})
	case before.primary != primary:
		r.events.emit(Event{Kind: PrimaryChanged, Group: f.name, Node: at.primary, From: before.primary.name, To: at.primary})
	}
	r.wakeSync() // what a primary was told may be lost with the one before it
	return nil
}

// follower finds or makes the follower of a group with sentinels.
func (m *builder) watcher(g *Group) *sentinelWatcher {
	for _, f := range m.watchers {
		if f.watches(g) {
			return f
		}
	}
	f := newSentinelWatcher(g, m.cfg, m.events, m.adopt)
	m.watchers = append(m.watchers, f)
	return f
}

// followed makes a group of the nodes that its follower knows. Before it knows any, the group is pending.
func (m *builder) sentinelGroup(name string, weight int, f *sentinelWatcher) *group {
	var g *group
	if now := f.group.Load(); now != nil {
		g = newGroup(name, weight, now.primary, now.replicas, m.cfg)
	} else {
		g = newGroup(name, weight, m.pendingPrimary(f), nil, m.cfg)
		g.pending = true
	}
	g.watcher = f
	return g
}

// nobody is the node that stands for a primary which is not known yet. Its breaker spares callers the wait while no
// sentinel answers.
func (m *builder) pendingPrimary(f *sentinelWatcher) *node {
	for _, n := range m.nodes {
		if b, ok := n.backend.(pendingPrimary); ok && b.sentinelWatcher == f {
			return n
		}
	}
	n := newNode(identity{group: f.name, name: "unknown"}, RolePrimary, pendingPrimary{f}, m.cfg, m.events)
	n.watched = false
	m.nodes, m.opened = append(m.nodes, n), append(m.opened, n)
	return n
}

type pendingPrimary struct{ *sentinelWatcher }

// Take implements [backend.Backend]. No call comes here: the group waits before it.
func (pendingPrimary) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, Err: ErrNoPrimary}
}

// Ping asks the primary once that is known.
func (b pendingPrimary) Ping(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	g, err := b.wait(limited, "ping")
	if err != nil {
		return asTimeout(ctx, err)
	}
	if pinger, ok := g.primary.backend.(backend.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

func (pendingPrimary) Close() error { return nil }

// wait returns the group once its primary is known.
func (f *sentinelWatcher) wait(ctx context.Context, op string) (*group, error) {
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
func whenReady[T any](ctx context.Context, g *group, timeout time.Duration, op string, call func(context.Context, *group) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now := g.watcher.group.Load()
	if now == nil {
		err := g.primary.query(op, func() (err error) {
			now, err = g.watcher.wait(limited, op)
			return asTimeout(ctx, err)
		})
		if err != nil {
			var none T
			return none, err
		}
	}
	result, err := call(limited, now)
	return result, asTimeout(ctx, err)
}

// own types the end of a timeout that is not the caller's.
func asTimeout(ctx context.Context, err error) error {
	if typed, ok := errors.AsType[*backend.Error](err); ok && typed.Kind == backend.Interrupted && ctx.Err() == nil {
		late := *typed
		late.Kind = backend.Unavailable
		return &late
	}
	return err
}

// failed looks whether an error of the primary says that it is none any more. The sentinels may know already.
func (g *group) checkReadOnly(err error) error {
	var reply redis.Error
	if g.watcher != nil && errors.As(err, &reply) && strings.Contains(reply.Error(), "READONLY") { // Redis 6 has the script before it
		g.watcher.pollSoon()
	}
	return err
}
