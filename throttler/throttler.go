package throttler

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/prefixtable"
	"github.com/sluice-go/sluice/limit"
)

// ErrClosed is returned by every call after Close.
var ErrClosed = backend.ErrClosed

// ErrUnsupported is returned where the backend lacks what a method needs, such as refunds for Reserve, or charges for a
// Settle above what was reserved.
var ErrUnsupported = backend.ErrUnsupported

// Throttler decides. Make one with New for each policy, or one with PolicyFor or Policies for many.
type Throttler struct {
	cfg      Config
	backend  backend.Backend
	owned    *memory.Memory // the backend, if New made it
	fallback fallback
	born     time.Time
	closed   atomic.Bool
	done     chan struct{} // closed by Close

	observer       Observer       // nil if there is none
	commitObserver CommitObserver // the same, if it is one
	outageObserver OutageObserver // the same, if it is one

	validPolicies policyCache
	allow, deny   prefixtable.Set // of the Config
	hasLists      bool
	provisionals  provisionals
	outages       outages
	log           warnings // of requests without a verdict
	lost          warnings // of refunds, which are no outages

	closing sync.Mutex     // held while closed changes, and while a call is counted
	calls   sync.WaitGroup // of AllowAll and ReserveAll, and their refunds that go on after them
}

// reachableWithin bounds the Ping of New.
const reachableWithin = 5 * time.Second

// New makes a Throttler. It reports every problem of the configuration at once. It does no network I/O, except with
// RequireReachable.
func New(cfg Config) (*Throttler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("throttler: %w", err)
	}
	cfg.Policy.Limits = append([]limit.Limit(nil), cfg.Policy.Limits...)
	t := &Throttler{
		cfg: cfg, born: time.Now(), backend: cfg.Backend, observer: cfg.Observer, done: make(chan struct{}),
		log: warnings{logger: cfg.Logger}, lost: warnings{logger: cfg.Logger},
	}
	if t.backend == nil {
		memory, err := memory.New(memory.Config{})
		if err != nil {
			return nil, err
		}
		t.backend, t.owned = memory, memory
	}
	t.provisionals.seed, t.provisionals.start = maphash.MakeSeed(), time.Now()
	t.commitObserver, _ = cfg.Observer.(CommitObserver)
	t.outageObserver, _ = cfg.Observer.(OutageObserver)
	t.allow, t.deny = prefixtable.NewSet(cfg.Allow), prefixtable.NewSet(cfg.Deny)
	t.hasLists = len(cfg.Allow)+len(cfg.Deny) > 0
	var err error
	if t.fallback, err = newFallback(&t.cfg); err != nil {
		return nil, err
	}
	if cfg.RequireReachable {
		ctx, cancel := context.WithTimeout(context.Background(), reachableWithin)
		defer cancel()
		if err := t.Ping(ctx); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// Allow is AllowN with a cost of 1.
func (t *Throttler) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = t.decide(ctx, t.view(), key, 1, &d, nil)
	return d, err
}

// AllowN checks cost against every limit of the key's policy and charges all of them if all admit it. A denied
// request is charged nothing, and answered from the reply that denied it. A cost that a limit can never hold is a
// limit.ErrCostExceedsLimit.
func (t *Throttler) AllowN(ctx context.Context, key string, cost int64) (d Decision, err error) {
	err = t.decide(ctx, t.view(), key, cost, &d, nil)
	return d, err
}

// Ping checks that every server of the backend answers, also those whose circuit breaker is open: at a start, or as a
// readiness check. Its error wraps one or more [backend.Error] values, whose Kind tells what only a person can fix
// (backend.Misconfigured) from what may pass (backend.Unavailable).
func (t *Throttler) Ping(ctx context.Context) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := t.timeout(ctx)
	defer cancel()
	if err := backend.Ping(ctx, t.backend); err != nil {
		return fmt.Errorf("throttler: %w", err)
	}
	return nil
}

// Close makes every later call fail with ErrClosed, including Settle: settle first. It ends each Wait, and waits for each
// AllowAll and ReserveAll under way, so an Observer or PolicyFor must not close the Throttler. It leaves open what the
// configuration holds: the Backend, Policies and observers.
func (t *Throttler) Close() error {
	t.closing.Lock()
	before := t.closed.Swap(true)
	t.closing.Unlock()
	if before {
		return nil
	}
	close(t.done)
	t.calls.Wait()
	var errs []error
	for _, memory := range []*memory.Memory{t.fallback.memory, t.owned} {
		if memory != nil {
			errs = append(errs, memory.Close())
		}
	}
	return errors.Join(errs...)
}

// enter counts a call that Close waits for. After Close, when every request is refused, it reports false.
func (t *Throttler) enter() bool {
	t.closing.Lock()
	defer t.closing.Unlock()
	if t.closed.Load() {
		return false
	}
	t.calls.Add(1)
	return true
}

// request checks the input, before anything is sent or charged.
func (t *Throttler) request(ctx context.Context, view PolicyView, key string, cost int64) (backend.Request, error) {
	policy, err := t.policy(ctx, view, key, cost)
	return backend.Request{Key: key, Policy: policy, Cost: cost}, err
}

// timeout bounds a call.
func (t *Throttler) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.cfg.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, t.cfg.Timeout)
}
