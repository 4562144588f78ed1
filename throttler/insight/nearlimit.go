package insight

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/sluice-go/sluice/internal/workqueue"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// NearLimitConfig configures a NearLimit.
type NearLimitConfig struct {
	// Notify is called when the backend admits a request that leaves at most Share of a limit's quota, once for each key, limit
	// and window; of a sliding limit or a bucket, once until the quota would have been back. One goroutine calls it, one
	// call after the other, and Close waits for it, so it must not call Close. Events are dropped when 256 of them wait, when
	// the waiting keys longer than 200 bytes exceed 1 MiB, and when many thousands of keys are near their limits at
	// once. If nil, no function is called: the latest events are kept for a Recorder all the same, see Config.NearLimit.
	Notify func(NearLimitEvent)

	// Share is the share of a quota, up to 1. Zero: 0.1.
	Share float64
}

// NearLimitEvent is a key that has little left of a limit.
type NearLimitEvent struct {
	Key    string
	Policy *limit.Policy // not to be changed
	Status limit.Status  // of the limit, after the request
}

const (
	defaultShare    = 0.1
	nearLimitQueue  = 256
	nearLimitShards = 16
	nearLimitSets   = 512 // in a shard
	nearLimitWays   = 8   // in a set
)

// NearLimit is an Observer that notifies of keys that come near a limit: to warn a customer, say. Make one with NewNearLimit.
type NearLimit struct {
	share float64
	seed  maphash.Seed
	queue *workqueue.Queue[NearLimitEvent]

	latest latestEvents

	// A table of a fixed size holds the keys that were notified of. Without room for a key there is no event, so that no key
	// is notified of twice.
	shards [nearLimitShards]struct {
		mu       sync.Mutex
		notified []notified // made when needed; a set is nearLimitWays in a row
	}
}

// notified is a key's limit that was notified of until its window ends.
type notified struct {
	hash  uint64
	until int64 // Unix microseconds
}

var _ throttler.CommitObserver = (*NearLimit)(nil)

// NewNearLimit makes a NearLimit. It reports every problem of the configuration at once.
func NewNearLimit(cfg NearLimitConfig) (*NearLimit, error) {
	var errs []error
	if !(cfg.Share >= 0 && cfg.Share <= 1) { // nor NaN
		errs = append(errs, &limit.Error{Field: "Share", Value: fmt.Sprint(cfg.Share), Bound: "must be from 0 to 1"})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("insight: %w", err)
	}
	n := &NearLimit{share: cfg.Share, seed: maphash.MakeSeed()}
	if n.share == 0 {
		n.share = defaultShare
	}
	n.queue = workqueue.New(nearLimitQueue, 1, func(_ context.Context, key string, event NearLimitEvent) {
		event.Key = key
		n.latest.keep(event)
		if cfg.Notify != nil {
			cfg.Notify(event)
		}
	})
	return n, nil
}

// Start implements [throttler.Observer].
func (n *NearLimit) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

// End implements [throttler.Observer].
func (n *NearLimit) End(context.Context, *throttler.Event) {}

// Commit implements [throttler.CommitObserver].
func (n *NearLimit) Commit(_ context.Context, e *throttler.Event) throttler.Settler {
	for s := range e.Decision.All() {
		if !s.Limit.IsCounter() && float64(s.Remaining) <= n.share*float64(s.Limit.Quota()) {
			n.notify(e, s, e.Decision.At.UnixMicro())
		}
	}
	return nil
}

func (n *NearLimit) notify(e *throttler.Event, s limit.Status, now int64) {
	hash := n.hash(e, s.Limit)
	shard := &n.shards[hash%nearLimitShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.notified == nil {
		shard.notified = make([]notified, nearLimitSets*nearLimitWays)
	}
	start := hash / nearLimitShards % nearLimitSets * nearLimitWays
	var free *notified
	for i := range nearLimitWays {
		entry := &shard.notified[start+uint64(i)]
		switch {
		case entry.until <= now:
			free = entry
		case entry.hash == hash:
			return
		}
	}
	if free != nil && n.queue.Add(e.Key, NearLimitEvent{Policy: e.Policy, Status: s}) {
		*free = notified{hash: hash, until: s.ResetAt.UnixMicro()}
	}
}

// hash tells keys, policies and limits apart. A limit with another Max is the same limit.
func (n *NearLimit) hash(e *throttler.Event, l limit.Limit) uint64 {
	l.Name, l.Max, l.Burst = "", 0, 0
	var h maphash.Hash
	h.SetSeed(n.seed)
	maphash.WriteComparable(&h, l)
	_, _ = h.WriteString(e.Policy.Name)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(e.Key)
	return h.Sum64()
}

// Close waits for the call of Notify that is under way, and drops the events that wait.
func (n *NearLimit) Close() error {
	n.queue.Close()
	return nil
}
