package router

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// beat is what a node said at a heartbeat. Of a node that can only be pinged just the time is known.
type beat struct {
	backend.Heartbeat
	at time.Time // when it was asked
}

// age is since when a replica may not have heard of its primary. It counts from the question, not from the answer: too
// old is harmless.
func (b *beat) age() time.Duration { return b.Age + time.Since(b.at) }

func (b *beat) role() Role {
	if b.Primary {
		return RolePrimary
	}
	return RoleReplica
}

// urgentGap is the most that passes between two heartbeats of a node that is unavailable. Five in a row are sent
// within the breaker's window, however rare heartbeats are.
const urgentGap = 100 * time.Millisecond

// beatTimeout bounds a heartbeat. A Redis node ends it within its own timeout; this is for other backends.
func beatTimeout(cfg Config) time.Duration { return max(time.Second, cfg.Backend.Timeout) }

// watch asks the node how it is until ctx ends: at every interval, soon after a caller found it slow or gone, and
// all the time while it is unavailable. The breaker lets few of the latter pass.
func (n *node) runHeartbeats(ctx context.Context, interval, timeout time.Duration) {
	gap := min(interval/10, urgentGap)
	for {
		err := n.heartbeat(ctx, timeout)
		if !sleep(ctx, jitter(gap), nil) {
			return
		}
		if kindOf(err) == backend.Unavailable {
			continue
		}
		if !sleep(ctx, jitter(interval-gap), n.probeNow) {
			return
		}
	}
}

// sleep waits for d or until it is woken. It reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-wake:
	}
	return true
}

// beat sends one heartbeat. To a node that refuses changes it goes past the breaker, which doesn't hear of an
// answer that says nothing of them.
func (n *node) heartbeat(ctx context.Context, timeout time.Duration) error {
	ask := func() error { return n.probe(ctx, timeout) }
	if !n.refusesWrites() {
		return n.throughBreaker("ping", ask)
	}
	err := n.bypassBreaker(ask)
	if said := err; said != nil || !n.refusesWrites() {
		err = n.throughBreaker("ping", func() error { return said })
	}
	if n.writesBlocked() {
		return nil // that is known: there is no hurry
	}
	return err
}

// ask asks the node how it is. Its latency is not that of a load and not counted as such.
func (n *node) probe(ctx context.Context, timeout time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now := &beat{at: time.Now()}
	heart, knows := n.backend.(backend.Heartbeater)
	var err error
	if knows {
		now.Heartbeat, err = heart.Heartbeat(limited)
	} else {
		err = n.backend.(backend.Pinger).Ping(limited)
	}
	if kindOf(err) == backend.Interrupted && ctx.Err() == nil { // no caller: the node was too slow
		err = n.unavailable(err)
	}
	n.unreachable.Store(kindOf(err) == backend.Unavailable)
	if err != nil {
		return err
	}
	last := n.lastBeat.Swap(now)
	if !knows {
		return nil
	}
	n.compare(last, now)
	switch {
	case now.Primary && last != nil && !last.Primary:
		n.writeRefusedAt.Store(0) // it did because it was a replica
	case !now.Primary && n.is(RolePrimary):
		return n.unavailable(errDemoted)
	}
	return nil
}

var errDemoted = errors.New("the server says that it is a replica")

func (n *node) unavailable(err error) error {
	return &backend.Error{Op: "ping", Node: n.title(), Kind: backend.Unavailable, Err: err}
}

// compare reports what has changed since the last heartbeat, or at the first one, what is not as the topology says.
func (n *node) compare(last, now *beat) {
	role, linkUp := Role(n.role.Load()), true
	if last != nil {
		role, linkUp = last.role(), last.LinkUp
		if last.RunID != now.RunID && last.RunID != "" && now.RunID != "" {
			n.syncedEpoch.Store(0) // it may have forgotten
			n.emit(Event{Kind: Restarted, From: last.RunID, To: now.RunID})
		}
	}
	if role != now.role() {
		n.emit(Event{Kind: RoleChanged, From: role.String(), To: now.role().String()})
	}
	switch {
	case now.Primary || n.is(RolePrimary): // it has no link, or one that only its role change explains
	case linkUp && !now.LinkUp:
		n.emit(Event{Kind: LinkDown})
	case !linkUp && now.LinkUp:
		n.emit(Event{Kind: LinkUp})
	}
}
