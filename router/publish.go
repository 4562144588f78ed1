package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
)

// The primaries keep the newest topology, as an announcement, for processes that don't know it. The previous ones go along, for
// processes that start later.

// announcement is the topology as it is published. A signed one is published unchanged, since its signature covers the whole chain.
func (t *routingTable) announcement() (control.Announcement, error) {
	topology := t.topology
	if len(topology.Signature) == 0 {
		topology = t.published()
	}
	text, err := json.Marshal(topology)
	return control.Announcement{Version: t.version(), Digest: t.digest, Text: string(text)}, errors.Join(err, topology.Validate())
}

// syncWith compares the topology in force with the one that a node holds, and takes over a newer one. Where there is an older
// one or none, it publishes its own if that is wanted, unless the router was stopped because others have another topology.
func (r *Router) syncWith(ctx context.Context, n *node, publish bool) error {
	t := r.table.Load()
	if _, ok := n.backend.(control.Publisher); t.version() == 0 || !ok {
		return backend.ErrUnsupported
	}
	there, err := n.announced(ctx)
	if err == nil && there.Version < t.version() && publish && t.stopped == nil && r.publish(ctx, n, t) {
		there, err = n.announced(ctx)
	}
	switch {
	case err != nil:
		return err
	case there.Version < t.version():
		n.syncedEpoch.Store(0)
		return nil
	case there.Version == t.version() && there.Digest == t.digest:
		n.syncedEpoch.Store(t.version())
		return nil
	}
	topology, err := r.trustedTopology(t, there)
	switch {
	case err == nil && there.Version == t.version():
		n.syncedEpoch.Store(0)
		r.stopForConflict(t, n, topology)
		return ErrTopologyConflict
	case err == nil:
		if err = r.takeOver(topology); err == nil {
			return nil
		}
	}
	n.reportRejected(err)
	return err
}

// takeOver puts a published topology in force, unless one of its epoch or a newer one is by now: that may have newer addresses.
func (r *Router) takeOver(topology Topology) error {
	if err := topology.checkConfig(r.cfg); err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if topology.Epoch <= r.table.Load().topology.Epoch {
		return nil
	}
	return r.updateLocked(topology)
}

// announced reads what a node holds.
func (n *node) announced(ctx context.Context) (there control.Announcement, err error) {
	err = n.call(ctx, read, "published", func() (err error) {
		there, err = control.Published(ctx, n.backend)
		return err
	})
	return there, err
}

// publish publishes the topology at a node, and reports whether it did. It is no fault if this process may not write there: others
// publish.
func (r *Router) publish(ctx context.Context, n *node, t *routingTable) bool {
	if n.deniedEpoch.Load() == t.version() {
		return false
	}
	if len(r.cfg.TopologyKeys) > 0 && len(t.topology.Signature) == 0 {
		if n.deniedEpoch.Swap(t.version()) != t.version() {
			n.emit(Event{Kind: TopologyUnpublished, Err: &ConfigError{Field: "signature", Value: "none", Bound: fmt.Sprintf(
				"must be there with TopologyKeys for epoch %d to be published: processes that were not given it don't learn of it", t.version())}})
		}
		return false
	}
	announcement, err := t.announcement()
	if err != nil {
		n.reportRejected(err)
		return false
	}
	return n.call(ctx, read, "publish", func() error {
		_, err := control.Publish(ctx, n.backend, announcement)
		if reply := redis.Error(nil); errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOPERM") {
			n.deniedEpoch.Store(t.version())
			return nil
		}
		return err
	}) == nil && n.deniedEpoch.Load() != t.version()
}

// reportRejected reports that a topology from a node is not taken over, once for each reason.
func (n *node) reportRejected(err error) {
	if text := err.Error(); n.lastRejected.Swap(text) != text {
		n.emit(Event{Kind: TopologyRejected, Err: err})
	}
}

// stopForConflict stops all calls by a table that differs from what was published under its epoch, until there is a newer one.
func (r *Router) stopForConflict(t *routingTable, n *node, published Topology) {
	stopped := *t
	stopped.stopped = t.topology.conflictWith(published, n.title())
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.table.Load() != t || t.stopped != nil {
		return
	}
	r.events.emit(Event{Kind: TopologyRejected, Group: n.group, Node: n.name, Err: stopped.stopped})
	r.table.Store(&stopped)
}

// syncLoop syncs with all primaries at the start, after each change, and now and then, until the router is closed; with those of
// previous topologies, too, for there may be processes that know no others. Each round reads everywhere before it publishes
// anywhere: otherwise a topology that differs from all others would win at a server which has lost theirs.
func (r *Router) syncLoop() {
	for {
		for _, publish := range []bool{false, true} {
			var all sync.WaitGroup
			t := r.table.Load()
			for _, g := range t.allGroups() {
				if g.pending || publish && g.primary.syncedEpoch.Load() == t.version() {
					continue
				}
				all.Go(func() {
					ctx, cancel := context.WithTimeout(r.life, beatTimeout(r.cfg))
					defer cancel()
					_ = r.syncWith(ctx, g.primary, publish) // what matters is in the events, and the next round tries again
				})
			}
			all.Wait()
		}
		r.dropDrained()
		pause := jitter(syncEvery)
		if r.table.Load().version() == 0 {
			pause = math.MaxInt64 // there is nothing to publish until there is a change
		}
		if !sleep(r.life, pause, r.syncSoon) {
			return
		}
	}
}

const syncEvery = 10 * time.Second

// wakeSync asks for a round of syncLoop soon.
func (r *Router) wakeSync() {
	select {
	case r.syncSoon <- struct{}{}:
	default:
	}
}
