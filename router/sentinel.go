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
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A group with sentinels has the nodes that they name. go-redis has a client that follows a master by itself; it isn't used,
// because here each node has a breaker, a heartbeat and a clock of its own, and replicas are chosen by them.

// follower follows the primary of a group by what its sentinels say: they tell of a failover, and are asked at the start,
// now and then, and as long as the primary is not fit.
//
// Sentinels may disagree for a while, one that was cut off even for long. Each failover has an epoch of its own, so what
// counts is the word with the largest one, whoever says it, and no word of an older epoch changes anything. Only where
// for a while nobody knows of that epoch any more, as after all sentinels were set up anew, it is forgotten.
type sentinelWatcher struct {
	name, master string // of the group, and what its sentinels call it
	addresses    []string
	options      *redis.Options
	adopt        func(*sentinelWatcher, sentinelView) error
	events       *events
	timeout      time.Duration // of one look
	step         time.Duration // between two looks while the primary is not fit

	stop    func()        // ends it; nil before it runs; guarded by Router.changing
	pollNow chan struct{} // asks for a look at once

	ready chan struct{}         // closed once there is a group
	group atomic.Pointer[group] // as it is now

	mu            sync.Mutex   // guards what follows
	current       sentinelView // what is in force
	outvotedSince time.Time    // since when most sentinels say otherwise and none confirms it; zero if not so
	reportedAt    time.Time
}

// sighting is what a sentinel says of a group.
type sentinelView struct {
	epoch    int64 // of the failover that made the primary one
	primary  string
	replicas []string // those that the sentinel can reach
}

type sentinel struct {
	*redis.SentinelClient
	address string
}

const (
	pollEvery   = 10 * time.Second
	pollGap     = 100 * time.Millisecond // between two looks that somebody asked for
	listenPause = time.Second            // before a subscription is made once more
	listenPing  = 5 * time.Second        // of silence, after which a sentinel is asked whether it is there
	outvotedFor = 30 * time.Second       // of doubt; a sentinel that takes part in a failover is told of it within 2 s
)

func newSentinelWatcher(g *Group, cfg Config, events *events, adopt func(*sentinelWatcher, sentinelView) error) *sentinelWatcher {
	var options redis.Options
	if cfg.Sentinel != nil {
		options = *cfg.Sentinel
	}
	options.DB = 0
	options.MaxRetries, options.DialerRetries, options.ContextTimeoutEnabled = -1, 1, true
	options.DisableIdentity = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	timeout := beatTimeout(cfg)
	for _, t := range []*time.Duration{&options.DialTimeout, &options.ReadTimeout, &options.WriteTimeout, &options.PoolTimeout} {
		if *t <= 0 {
			*t = timeout
		}
	}
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

// follows reports whether it is the follower that a group needs.
func (f *sentinelWatcher) watches(g *Group) bool {
	return f.name == g.Name && f.master == g.Master &&
		slices.Equal(slices.Sorted(slices.Values(f.addresses)), slices.Sorted(slices.Values(g.Sentinels)))
}

// suspect asks for a look at once.
func (f *sentinelWatcher) pollSoon() {
	select {
	case f.pollNow <- struct{}{}:
	default:
	}
}

// run follows until ctx ends.
func (f *sentinelWatcher) run(ctx context.Context) {
	clients := make([]sentinel, len(f.addresses))
	for i, address := range f.addresses {
		options := *f.options
		options.Addr = address
		clients[i] = sentinel{redis.NewSentinelClient(&options), address}
	}
	var listeners sync.WaitGroup
	for _, client := range clients {
		listeners.Go(func() {
			for f.listen(ctx, client); sleep(ctx, jitter(listenPause), nil); {
				f.listen(ctx, client)
			}
		})
	}
	for f.poll(ctx, clients); f.pause(ctx); {
		f.poll(ctx, clients)
	}
	listeners.Wait()
	for _, client := range clients {
		_ = client.Close()
	}
}

// rest waits until the sentinels should be asked again. It reports whether ctx goes on.
func (f *sentinelWatcher) pause(ctx context.Context) bool {
	looked := time.Now()
	if !sleep(ctx, jitter(pollGap), nil) {
		return false
	}
	every := jitter(pollEvery)
	for time.Since(looked) < every {
		timer := time.NewTimer(jitter(f.step))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-f.pollNow:
			timer.Stop()
			return true
		case <-timer.C:
		}
		if !f.healthy() {
			return true
		}
	}
	return true
}

// fit reports whether there is a primary that is one as far as is known.
func (f *sentinelWatcher) healthy() bool {
	g := f.group.Load()
	if g == nil || g.primary.open.Load() {
		return false
	}
	return !g.primary.demoted()
}

// look asks all sentinels at once. What one of them says counts at once, too: another may hang.
func (f *sentinelWatcher) poll(ctx context.Context, clients []sentinel) {
	said := make([]sentinelView, len(clients))
	var all sync.WaitGroup
	for i, client := range clients {
		all.Go(func() { said[i] = f.query(ctx, client) })
	}
	all.Wait()
	if ctx.Err() == nil {
		f.reconcile(slices.DeleteFunc(said, func(s sentinelView) bool { return s.primary == "" }), time.Now())
	}
}

// ask asks one sentinel, and believes what is newer than what is known. It returns none if there was no answer.
func (f *sentinelWatcher) query(ctx context.Context, client sentinel) sentinelView {
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	// The epoch first: between the two questions a failover may come, and then this says too little of a newer primary
	// rather than too much of an older one.
	master, err := client.Master(limited, f.master).Result()
	var address []string
	if err == nil {
		address, err = client.GetMasterAddrByName(limited, f.master).Result()
	}
	var replicas []map[string]string
	if err == nil {
		replicas, err = client.Replicas(limited, f.master).Result()
	}
	epoch, bad := strconv.ParseInt(master["config-epoch"], 10, 64)
	if err == nil && (bad != nil || len(address) != 2) {
		err = errNotSentinel
	}
	if err != nil {
		if ctx.Err() == nil {
			f.reportMisconfigured(client, err)
		}
		return sentinelView{}
	}
	s := sentinelView{epoch: epoch, primary: net.JoinHostPort(address[0], address[1])}
	for _, replica := range replicas {
		at := net.JoinHostPort(replica["ip"], replica["port"])
		if at != s.primary && !unreachable(replica["flags"]) {
			s.replicas = append(s.replicas, at)
		}
	}
	f.offer(s)
	return s
}

var errNotSentinel = errors.New("the answer is not a sentinel's")

// away reports whether a sentinel can't reach a server that it has these flags for.
func unreachable(flags string) bool {
	return slices.ContainsFunc(strings.Split(flags, ","), func(flag string) bool {
		return flag == "s_down" || flag == "o_down" || flag == "disconnected"
	})
}

// complain reports a sentinel that answers, but not what it was asked. One that is away is nobody's business while there
// are others.
func (f *sentinelWatcher) reportMisconfigured(client sentinel, err error) {
	var reply redis.Error
	if !errors.As(err, &reply) && !errors.Is(err, errNotSentinel) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.reportedAt.IsZero() && time.Since(f.reportedAt) < pollEvery {
		return
	}
	f.reportedAt = time.Now()
	f.events.emit(Event{Kind: Misconfigured, Group: f.name, Node: client.address, Err: err})
}

// listen hears of failovers from one sentinel until it is lost, or ctx ends.
func (f *sentinelWatcher) listen(ctx context.Context, client sentinel) {
	const channel = "+switch-master"
	news := client.Subscribe(ctx, channel)
	stop := context.AfterFunc(ctx, func() { _ = news.Close() })
	defer func() {
		if stop() {
			_ = news.Close()
		}
	}()
	for silent := false; ctx.Err() == nil; {
		heard, err := news.ReceiveTimeout(ctx, listenPing)
		if err != nil {
			late, isNet := errors.AsType[net.Error](err)
			if silent || !isNet || !late.Timeout() || news.Ping(ctx) != nil {
				return
			}
			silent = true
			continue
		}
		silent = false
		switch heard := heard.(type) {
		case *redis.Subscription: // there may have been a failover before
			f.query(ctx, client)
		case *redis.Message: // <master> <old ip> <old port> <new ip> <new port>
			if name, _, _ := strings.Cut(heard.Payload, " "); name == f.master {
				f.query(ctx, client)
				f.pollSoon() // the others may know more of the replicas
			}
		}
	}
}

// heard puts in force what is newer than what is known.
func (f *sentinelWatcher) offer(s sentinelView) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.primary == "" || s.epoch > f.current.epoch {
		f.adoptLocked(s)
	}
}

// compare looks at what all sentinels said who answered.
func (f *sentinelWatcher) reconcile(said []sentinelView, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	votes := make(map[string]int)
	for _, s := range said {
		votes[s.primary]++
	}
	confirmed := slices.ContainsFunc(said, func(s sentinelView) bool {
		return s.primary == f.current.primary || s.epoch > f.current.epoch
	})
	next := f.current
	if !confirmed {
		for _, s := range said {
			if 2*votes[s.primary] > len(f.addresses) && (next.primary == f.current.primary || s.epoch > next.epoch) {
				next = s
			}
		}
	}
	switch {
	case next.primary == f.current.primary:
		f.outvotedSince = time.Time{}
	case f.outvotedSince.IsZero():
		f.outvotedSince = now
		return
	case now.Sub(f.outvotedSince) < outvotedFor:
		return
	}
	var replicas []string
	for _, s := range said { // one that only some can reach may be fit for us
		if s.primary == next.primary {
			replicas = append(replicas, s.replicas...)
		}
	}
	if votes[next.primary] == 0 {
		return // nobody to ask; what is known stays
	}
	slices.Sort(replicas)
	next.replicas = slices.Compact(replicas)
	f.adoptLocked(next)
}

func (f *sentinelWatcher) adoptLocked(s sentinelView) {
	slices.Sort(s.replicas)
	if s.primary == f.current.primary && slices.Equal(s.replicas, f.current.replicas) {
		f.current.epoch = s.epoch
		return
	}
	if err := f.adopt(f, s); err != nil { // the next look tries again
		f.events.emit(Event{Kind: Misconfigured, Group: f.name, Node: s.primary, Err: err})
		return
	}
	f.current, f.outvotedSince = s, time.Time{}
}
