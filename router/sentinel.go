package router

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisopts"
)

// go-redis has a client that follows a master by itself. It isn't used, because here each node has a breaker, a heartbeat and a
// clock of its own, which decide what is read.

// sentinelWatcher keeps the nodes of a group as its sentinels name them: it listens for failovers, and polls at the start, now
// and then, and while the primary is not healthy. sentinelgroup.go says which sentinel's view counts.
type sentinelWatcher struct {
	name, master string // of the group, and what its sentinels call it
	addresses    []string
	options      *redis.Options
	adopt        func(*sentinelWatcher, sentinelView) error
	events       *events
	timeout      time.Duration // of one poll
	step         time.Duration // between two polls while the primary is not healthy

	stop     func()        // ends it; nil before it runs; guarded by Router.changing
	replaced *node         // the group's primary before it had these sentinels, until they name one; guarded by Router.changing
	pollNow  chan struct{} // asks for a poll at once

	ready chan struct{}         // closed once there is a group
	group atomic.Pointer[group] // as it is now

	misconfigured pacer // of reports about sentinels
	refused       pacer // of reports about views that can't be put in force

	mu            sync.Mutex   // guards what follows
	current       sentinelView // in force
	outvotedSince time.Time    // since when most sentinels contradict it and none confirms it, or zero
}

type sentinel struct {
	*redis.SentinelClient
	address string
}

const (
	pollEvery   = 10 * time.Second
	pollGap     = 100 * time.Millisecond // between two polls, however urgent
	listenPause = time.Second            // before another subscription
	listenPing  = 5 * time.Second        // of silence, after which a sentinel is pinged
)

func newSentinelWatcher(g *Group, cfg Config, events *events, adopt func(*sentinelWatcher, sentinelView) error) *sentinelWatcher {
	var options redis.Options
	if cfg.Sentinel != nil {
		options = *cfg.Sentinel
	}
	options.DB = 0
	timeout := beatTimeout(cfg)
	redisopts.Harden(&options, timeout)
	options.PoolSize = cmp.Or(options.PoolSize, 2)
	step := cfg.Heartbeat
	if step < 0 {
		step = defaultHeartbeat
	}
	return &sentinelWatcher{
		name: g.Name, master: g.Master, addresses: slices.Clone(g.Sentinels), options: &options,
		adopt: adopt, events: events, timeout: timeout, step: min(max(step, pollGap), time.Second),
		pollNow: make(chan struct{}, 1), ready: make(chan struct{}),
	}
}

// watches reports whether it is the watcher of a group.
func (w *sentinelWatcher) watches(g *Group) bool {
	return w.name == g.Name && w.master == g.Master &&
		slices.Equal(slices.Sorted(slices.Values(w.addresses)), slices.Sorted(slices.Values(g.Sentinels)))
}

// pollSoon asks for a poll at once.
func (w *sentinelWatcher) pollSoon() {
	select {
	case w.pollNow <- struct{}{}:
	default:
	}
}

// run watches until ctx ends.
func (w *sentinelWatcher) run(ctx context.Context) {
	clients := make([]sentinel, len(w.addresses))
	for i, address := range w.addresses {
		options := *w.options
		options.Addr = address
		clients[i] = sentinel{redis.NewSentinelClient(&options), address}
	}
	var listeners sync.WaitGroup
	for _, client := range clients {
		listeners.Go(func() {
			for w.listen(ctx, client); sleep(ctx, jitter(listenPause), nil); {
				w.listen(ctx, client)
			}
		})
	}
	for w.poll(ctx, clients); w.pause(ctx); {
		w.poll(ctx, clients)
	}
	listeners.Wait()
	for _, client := range clients {
		_ = client.Close()
	}
}

// pause waits until the next poll. It reports whether ctx is still alive.
func (w *sentinelWatcher) pause(ctx context.Context) bool {
	polled := time.Now()
	if !sleep(ctx, jitter(pollGap), nil) {
		return false
	}
	every := jitter(pollEvery)
	for time.Since(polled) < every {
		timer := time.NewTimer(jitter(w.step))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-w.pollNow:
			timer.Stop()
			return true
		case <-timer.C:
		}
		if !w.healthy() {
			return true
		}
	}
	return true
}

// healthy reports whether there is a primary, as far as is known.
func (w *sentinelWatcher) healthy() bool {
	g := w.group.Load()
	return g != nil && !g.primary.open.Load() && !g.primary.demoted()
}

// poll queries all sentinels at once. Each answer counts when it comes, since another sentinel may be slow.
func (w *sentinelWatcher) poll(ctx context.Context, clients []sentinel) {
	views := make([]sentinelView, len(clients))
	var all sync.WaitGroup
	for i, client := range clients {
		all.Go(func() { views[i] = w.query(ctx, client) })
	}
	all.Wait()
	if ctx.Err() == nil {
		w.reconcile(slices.DeleteFunc(views, func(v sentinelView) bool { return v.primary == "" }), time.Now())
	}
}

// query asks one sentinel, and puts its view in force if that is newer. The view is zero if there was no answer.
func (w *sentinelWatcher) query(ctx context.Context, client sentinel) sentinelView {
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	// The epoch first: if a failover comes between the two queries the view has too low an epoch for its primary, which is
	// harmless, not too high a one.
	master, err := client.Master(limited, w.master).Result()
	var address []string
	if err == nil {
		address, err = client.GetMasterAddrByName(limited, w.master).Result()
	}
	var replicas []map[string]string
	if err == nil {
		replicas, err = client.Replicas(limited, w.master).Result()
	}
	epoch, bad := strconv.ParseInt(master["config-epoch"], 10, 64)
	if err == nil && (bad != nil || len(address) != 2) {
		err = errNotSentinel
	}
	if err != nil {
		if ctx.Err() == nil {
			w.reportMisconfigured(client, err)
		}
		return sentinelView{}
	}
	v := sentinelView{epoch: epoch, primary: net.JoinHostPort(address[0], address[1])}
	for _, replica := range replicas {
		at := net.JoinHostPort(replica["ip"], replica["port"])
		if at != v.primary && !unreachable(replica["flags"]) {
			v.replicas = append(v.replicas, at)
		}
	}
	w.offer(v)
	return v
}

var errNotSentinel = errors.New("the answer is not a sentinel's")

// unreachable reports whether a sentinel can't reach a server that it has these flags for.
func unreachable(flags string) bool {
	return slices.ContainsFunc(strings.Split(flags, ","), func(flag string) bool {
		return flag == "s_down" || flag == "o_down" || flag == "disconnected"
	})
}

// reportMisconfigured reports a sentinel that answers with an error. One that doesn't answer is no fault while there are others.
func (w *sentinelWatcher) reportMisconfigured(client sentinel, err error) {
	var reply redis.Error
	if !errors.As(err, &reply) && !errors.Is(err, errNotSentinel) {
		return
	}
	if w.misconfigured.due() {
		w.events.emit(Event{Kind: Misconfigured, Group: w.name, Node: client.address, Err: err})
	}
}

// listen receives one sentinel's messages about failovers until the connection is lost, or ctx ends.
func (w *sentinelWatcher) listen(ctx context.Context, client sentinel) {
	const channel = "+switch-master"
	messages := client.Subscribe(ctx, channel)
	stop := context.AfterFunc(ctx, func() { _ = messages.Close() })
	defer func() {
		if stop() {
			_ = messages.Close()
		}
	}()
	for silent := false; ctx.Err() == nil; {
		message, err := messages.ReceiveTimeout(ctx, listenPing)
		if err != nil {
			late, isNet := errors.AsType[net.Error](err)
			if silent || !isNet || !late.Timeout() || messages.Ping(ctx) != nil {
				return
			}
			silent = true
			continue
		}
		silent = false
		switch message := message.(type) {
		case *redis.Subscription: // there may have been a failover before
			w.query(ctx, client)
		case *redis.Message: // <master> <old ip> <old port> <new ip> <new port>
			if name, _, _ := strings.Cut(message.Payload, " "); name == w.master {
				w.query(ctx, client)
				w.pollSoon() // the others may know more of the replicas
			}
		}
	}
}
