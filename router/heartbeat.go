package router

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
)

// beat is an answered heartbeat. Of a node that can only be pinged just the time is known.
type beat struct {
	control.Heartbeat
	at time.Time // when it was sent
}

// age is since when a replica may not have heard of its primary. It counts from when the heartbeat was sent: too old is harmless.
func (b *beat) age() time.Duration { return b.Age + time.Since(b.at) }

func (b *beat) role() Role {
	if b.Primary {
		return RolePrimary
	}
	return RoleReplica
}

// urgentGap is the most that passes between two heartbeats of a node that is unavailable. Five in a row are sent within the
// breaker's window, however rare heartbeats are.
const urgentGap = 100 * time.Millisecond

// beatTimeout bounds a heartbeat. A Redis node ends it within its own timeout; this is for other backends.
func beatTimeout(cfg Config) time.Duration { return max(time.Second, cfg.Backend.Timeout) }

// runHeartbeats sends heartbeats until ctx ends: at every interval, soon after a call was slow or failed, and all the time
// while the node is unavailable. The breaker lets few of the latter pass.
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

// sleep waits for d or until it is woken. It reports whether ctx is still alive.
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

// heartbeat sends one heartbeat.
func (n *node) heartbeat(ctx context.Context, timeout time.Duration) error {
	err := n.call(ctx, probe, "ping", func() error { return n.ping(ctx, timeout) })
	if n.writesBlocked() {
		return nil // that is known: there is no hurry
	}
	return err
}

func (n *node) ping(ctx context.Context, timeout time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now := &beat{at: time.Now()}
	var err error
	if n.heartbeats {
		now.Heartbeat, err = control.HeartbeatOf(limited, n.backend)
	} else {
		err = backend.Ping(limited, n.backend)
	}
	err = n.asTimeout(ctx, "ping", err)
	n.unreachable.Store(kindOf(err) == backend.Unavailable)
	if err != nil {
		return err
	}
	last := n.lastBeat.Swap(now)
	if !n.heartbeats {
		return nil
	}
	n.compare(last, now)
	switch {
	case now.Primary && last != nil && !last.Primary:
		n.writeRefusedAt.Store(0) // it did because it was a replica
	case !now.Primary && n.is(RolePrimary):
		return &backend.Error{Op: "ping", Node: n.title(), Kind: backend.Unavailable, Err: errDemoted}
	}
	return nil
}

var errDemoted = errors.New("the server says that it is a replica")

// compare reports what has changed since the last heartbeat, or at the first one, what differs from the topology.
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
