package router

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// sentinelView is what a sentinel says of a group.
type sentinelView struct {
	epoch    int64 // of the failover that made the primary one
	primary  string
	replicas []string // those that the sentinel can reach
}

// Sentinels may disagree for a while, one that was cut off even for long. Each failover has an epoch of its own, so the view with
// the largest one counts, whichever sentinel has it, and no view of an older epoch changes anything. The epoch is given up only
// where for a while no sentinel knows of it any more, as after all sentinels were set up anew.

// outvotedFor is how long most sentinels must contradict what is in force. A sentinel that takes part in a failover hears of it
// within 2 s.
const outvotedFor = 30 * time.Second

// offer puts a view in force if it is newer than the one that is.
func (w *sentinelWatcher) offer(v sentinelView) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current.primary == "" || v.epoch > w.current.epoch {
		w.adoptLocked(v)
	}
}

// reconcile compares what is in force with the views of all sentinels that answered one poll.
func (w *sentinelWatcher) reconcile(views []sentinelView, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	votes := make(map[string]int)
	for _, v := range views {
		votes[v.primary]++
	}
	confirmed := slices.ContainsFunc(views, func(v sentinelView) bool {
		return v.primary == w.current.primary || v.epoch > w.current.epoch
	})
	next := w.current
	if !confirmed {
		for _, v := range views {
			if 2*votes[v.primary] > len(w.addresses) && (next.primary == w.current.primary || v.epoch > next.epoch) {
				next = v
			}
		}
	}
	switch {
	case next.primary == w.current.primary:
		w.outvotedSince = time.Time{}
	case w.outvotedSince.IsZero():
		w.outvotedSince = now
		return
	case now.Sub(w.outvotedSince) < outvotedFor:
		return
	}
	if votes[next.primary] == 0 {
		return // no sentinel knows its replicas; what is in force stays
	}
	var replicas []string
	for _, v := range views { // a replica that only some sentinels can reach may be fit here
		if v.primary == next.primary {
			replicas = append(replicas, v.replicas...)
		}
	}
	slices.Sort(replicas)
	next.replicas = slices.Compact(replicas)
	w.adoptLocked(next)
}

func (w *sentinelWatcher) adoptLocked(v sentinelView) {
	slices.Sort(v.replicas)
	if v.primary == w.current.primary && slices.Equal(v.replicas, w.current.replicas) {
		w.current.epoch = v.epoch
		return
	}
	if err := w.adopt(w, v); err != nil { // the next poll tries again
		if w.refused.due() {
			w.events.emit(Event{Kind: Misconfigured, Group: w.name, Node: v.primary, Err: err})
		}
		return
	}
	w.current, w.outvotedSince = v, time.Time{}
}

// adoptView puts in force that a group has its nodes where its sentinels say. The topology, its epoch and the ring stay, and so do
// the owners of keys.
func (r *Router) adoptView(w *sentinelWatcher, v sentinelView) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.closed.Load() {
		return nil
	}
	t := r.table.Load()
	if !slices.Contains(t.watchers(), w) {
		return nil // Update has removed it: no table would have the nodes, and nothing would close them
	}
	b := r.opener.builder(t)
	now := newGroup(w.name, 0, b.node(w.name, v.primary, RolePrimary), b.replicas(w.name, v.replicas), r.cfg)
	if err := b.finish(); err != nil {
		return err
	}
	now.watcher = w
	next := t.withGroups(func(g *group) *group {
		if g.watcher != w {
			return nil
		}
		named := *now
		named.weight = g.weight
		return &named
	})
	r.installLocked(next)
	before := w.group.Swap(now) // only now: the primary knows whether it was promoted
	r.closeUnused(t, next)
	switch {
	case before == nil:
		close(w.ready)
		r.events.emit(Event{Kind: PrimaryChanged, Group: w.name, Node: v.primary, To: v.primary})
	case before.primary != now.primary:
		r.events.emit(Event{Kind: PrimaryChanged, Group: w.name, Node: v.primary, From: before.primary.name, To: v.primary})
	}
	r.wakeSync() // an announcement may be lost with the primary before
	return nil
}

// lastPrimary is the group's primary or, while its sentinels have not named one, that of the group which it replaced; nil for none.
func (g *group) lastPrimary() *node {
	if g.pending {
		return g.watcher.replaced
	}
	return g.primary
}

// watcher finds or makes the watcher of a group with sentinels.
func (b *builder) watcher(g *Group) *sentinelWatcher {
	for _, w := range b.watchers {
		if w.watches(g) {
			return w
		}
	}
	w := newSentinelWatcher(g, b.cfg, b.events, b.adopt)
	b.watchers = append(b.watchers, w)
	return w
}

// sentinelGroup makes a group of the nodes in its sentinels' view. Before there is one the group is pending.
func (b *builder) sentinelGroup(w *sentinelWatcher, weight int) *group {
	var g *group
	if now := w.group.Load(); now != nil {
		g = newGroup(w.name, weight, now.primary, now.replicas, b.cfg)
	} else {
		g = newGroup(w.name, weight, b.pendingPrimary(w), nil, b.cfg)
		g.pending = true
	}
	g.watcher = w
	return g
}

// pendingPrimary finds or makes the node that stands for a primary which is not known yet. Its breaker spares calls the wait
// while no sentinel answers.
func (b *builder) pendingPrimary(w *sentinelWatcher) *node {
	for _, n := range b.nodes {
		if p, ok := n.backend.(pendingPrimary); ok && p.sentinelWatcher == w {
			return n
		}
	}
	n := newNode(identity{group: w.name, name: "unknown"}, RolePrimary, pendingPrimary{w}, b.cfg, b.events)
	n.watched = false
	b.nodes, b.opened = append(b.nodes, n), append(b.opened, n)
	return n
}

type pendingPrimary struct{ *sentinelWatcher }

// Take implements [backend.Backend]. It is never called: calls of a pending group wait until it is ready.
func (pendingPrimary) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, Err: ErrNoPrimary}
}

// Ping pings the primary once it is known.
func (p pendingPrimary) Ping(ctx context.Context) error {
	limited, cancel := bounded(ctx, p.timeout)
	defer cancel()
	g, err := p.wait(limited, "ping")
	if err != nil {
		return err
	}
	return backend.Ping(ctx, g.primary.backend)
}

func (pendingPrimary) Close() error { return nil }

// current returns the group as its sentinels have named it since, or the same one.
func (g *group) current() *group {
	if g.pending {
		if now := g.watcher.group.Load(); now != nil {
			return now
		}
	}
	return g
}

// ready returns the current group once its primary is known.
func (g *group) ready(ctx context.Context, op string) (now *group, err error) {
	if now = g.current(); !now.pending {
		return now, nil
	}
	err = g.primary.call(ctx, read, op, func() (err error) {
		now, err = g.watcher.wait(ctx, op)
		return err
	})
	return now, err
}

// wait returns the group once its primary is known.
func (w *sentinelWatcher) wait(ctx context.Context, op string) (*group, error) {
	select {
	case <-w.ready:
		return w.group.Load(), nil
	case <-ctx.Done():
	}
	kind := backend.Interrupted
	if caller, ok := ctx.Value(callerKey{}).(context.Context); ok && caller.Err() == nil {
		kind = backend.Unavailable
	}
	return nil, &backend.Error{Op: op, Node: w.name + "/unknown", Kind: kind, Err: errors.Join(ErrNoPrimary, ctx.Err())}
}
