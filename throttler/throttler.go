package throttler

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// ErrClosed is returned by every call after Close.
var ErrClosed = backend.ErrClosed

// ErrUnsupported is returned where the backend lacks what a method needs, such as refunds for Reserve.
var ErrUnsupported = backend.ErrUnsupported

// Throttler decides. Make one with New for each policy, or one with PolicyFor for many.
type Throttler struct {
	cfg          Config
	backend      backend.Backend
	owned        *backend.Memory // the backend, if New made it
	fallback     fallback
	policies     policyCache
	log          warnings // of requests without a verdict
	lost         warnings // of refunds; apart, for who was told of these doesn't know of an outage
	closed       atomic.Bool
	done         chan struct{}  // closed by Close
	closing      sync.Mutex     // held while closed changes, and while a call is counted
	calls        sync.WaitGroup // of AllowAll and ReserveAll, and refunds of theirs that go on after them
	provisionals provisionals
	observers    observers
	lists        *lists // nil for none
	outages      outages
	shadows      shadows
	near         *nearLimits     // nil for nobody to tell
	counts       *decisionCounts // nil if decisions are not counted
	top          *topDenied      // nil if no keys are watched
	hashKey      []byte
	instrumented bool // whether there is more to do than to decide
}

// reachableWithin bounds the Ping of New.
const reachableWithin = 5 * time.Second

// New checks the configuration, and reports every problem in it at once. It does no network I/O unless the configuration
// has RequireReachable; Ping does.
func New(cfg Config) (*Throttler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("throttler: %w", err)
	}
	cfg.Policy.Limits = append([]limit.Limit(nil), cfg.Policy.Limits...)
	t := &Throttler{
		cfg: cfg, backend: cfg.Backend, done: make(chan struct{}),
		log: warnings{logger: cfg.Logger}, lost: warnings{logger: cfg.Logger},
	}
	if t.backend == nil {
		memory, err := backend.NewMemory(backend.MemoryConfig{})
		if err != nil {
			return nil, err
		}
		t.backend, t.owned = memory, memory
	}
	t.provisionals.seed, t.provisionals.start = maphash.MakeSeed(), time.Now()
	t.observers = newObservers(cfg.Observer)
	t.outages.born = time.Now()
	t.lists = newLists(cfg.Allow, cfg.Deny)
	t.shadows.init(t)
	t.near = newNearLimits(&t.cfg)
	t.hashKey = newHashKey(cfg.Stats.HashKey)
	t.counts, t.top = newDecisionCounts(&cfg.Stats), newTopDenied(&cfg.Stats, t.hashKey)
	t.instrumented = t.observers.decisions != nil || t.lists != nil || cfg.Registry != nil ||
		t.shadows.always != nil || t.near != nil || t.counts != nil || t.top != nil
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
	err = t.decide(ctx, t.live(), key, 1, &d, nil)
	return d, err
}

// AllowN checks cost against every limit of the key's policy and charges all of them if all admit it. A denied
// request is charged nothing, and answered from the reply that denied it. A cost that a limit can never hold is a
// limit.ErrCostExceedsLimit.
func (t *Throttler) AllowN(ctx context.Context, key string, cost int64) (d Decision, err error) {
	err = t.decide(ctx, t.live(), key, cost, &d, nil)
	return d, err
}

// Ping asks the backend whether it would answer: every server of it, also those whose circuit breaker is open. Its error
// has a [backend.Error] in its chain, or several joined, whose Kind tells what only a person can fix (backend.Misconfigured)
// from what may pass (backend.Unavailable). It is for a start and for readiness checks.
func (t *Throttler) Ping(ctx context.Context) error {
	switch {
	case t.closed.Load():
		return ErrClosed
	case ctx == nil:
		return &limit.Error{Field: "context", Value: "nil", Bound: "must not be nil"}
	}
	pinger, ok := t.backend.(backend.Pinger)
	if !ok {
		return nil
	}
	ctx, cancel := t.timeout(ctx)
	defer cancel()
	if err := pinger.Ping(ctx); err != nil {
		return fmt.Errorf("throttler: %w", err)
	}
	return nil
}

// Close makes every later call fail with ErrClosed, Settle among them: settle first. It ends each Wait, and waits for each
// AllowAll and ReserveAll under way, so that what these call, an Observer or PolicyFor, must not close the Throttler. It
// leaves the Backend of the configuration open.
func (t *Throttler) Close() error {
	t.closing.Lock()
	before := t.closed.Swap(true)
	t.closing.Unlock()
	if before {
		return nil
	}
	close(t.done)
	t.calls.Wait()
	t.shadows.close()
	t.near.close()
	var errs []error
	for _, memory := range []*backend.Memory{t.fallback.memory, t.owned} {
		if memory != nil {
			errs = append(errs, memory.Close())
		}
	}
	return errors.Join(errs...)
}

// enter counts a call that Close is to wait for, unless it has begun to: then every request is refused.
func (t *Throttler) enter() bool {
	t.closing.Lock()
	defer t.closing.Unlock()
	if t.closed.Load() {
		return false
	}
	t.calls.Add(1)
	return true
}

// charge is what an admitted take can give back.
type charge struct {
	backend backend.Backend
	req     backend.Request
	receipt limit.Receipt
	shadow  *shadowCharge // what goes back with it; nil for nothing
	key     int           // of a Reservation: which of its keys this is of

	own       int32 // before a take: how many of the provisionals of the key are of the same call
	temporary bool  // after a denial: whether a charge that goes back may be why
}

// take is decide for a request that may be given back. The charge is empty unless the request was admitted.
func (t *Throttler) take(ctx context.Context, live *policies, key string, cost int64) (d Decision, c charge, err error) {
	err = t.decide(ctx, live, key, cost, &d, &c)
	return d, c, err
}

// decide decides one request. It fills in an empty decision and, if c isn't nil, an empty charge: both are large, and
// passing them on by value takes longer than deciding.
func (t *Throttler) decide(ctx context.Context, live *policies, key string, cost int64, d *Decision, c *charge) error {
	if t.instrumented {
		return t.decideInstrumented(ctx, live, key, cost, d, c)
	}
	policy, err := t.policy(ctx, nil, key, cost)
	if err != nil {
		*d = refusal(policy, err)
		return err
	}
	call, cancel := t.timeout(ctx)
	defer cancel()
	result, err := t.backend.Take(call, backend.Request{Key: key, Policy: policy, Cost: cost})
	if err != nil {
		return t.fallBack(ctx, key, policy, cost, err, d, c)
	}
	if t.outages.on.Load() {
		t.endOutage(ctx, policy, result.Source)
	}
	d.fill(&result)
	switch {
	case !d.Allowed:
		if t.provisionals.used.Load() {
			t.shortenRetryAfter(&backend.Request{Key: key, Policy: policy}, c, d)
		}
	case c != nil:
		*c = newCharge(t.backend, &backend.Request{Key: key, Policy: policy, Cost: cost}, &result)
	}
	return nil
}

// fallBack is the end of decide for a request on which the backend gave no verdict.
func (t *Throttler) fallBack(
	ctx context.Context, key string, policy *limit.Policy, cost int64, cause error, d *Decision, c *charge,
) (err error) {
	var alone charge
	req := backend.Request{Key: key, Policy: policy, Cost: cost}
	*d, alone, err = t.applyFailurePolicy(ctx, req, cause)
	switch {
	case err != nil:
	case !d.Allowed:
		if t.cfg.Failure == FailLocal && t.provisionals.used.Load() {
			t.shortenRetryAfter(&req, c, d)
		}
	case c != nil:
		*c = alone
	}
	return err
}

func newCharge(by backend.Backend, req *backend.Request, result *backend.Result) charge {
	if !result.Allowed {
		return charge{}
	}
	return charge{backend: by, req: *req, receipt: result.Receipt()}
}

// refund gives amount of a charge back, and of its shadow.
func (t *Throttler) refund(ctx context.Context, c *charge, amount int64) error {
	err := c.backend.(backend.Refunder).Refund(ctx, c.req, c.receipt, amount)
	if err == nil && c.shadow != nil {
		t.giveShadowBack(c.shadow, amount)
	}
	return err
}

// request is what the backend is asked. It refuses bad input, before anything is sent or charged.
func (t *Throttler) request(ctx context.Context, live *policies, key string, cost int64) (backend.Request, error) {
	policy, err := t.policy(ctx, live, key, cost)
	return backend.Request{Key: key, Policy: policy, Cost: cost}, err
}

// live is what the registry says; nil without one. A request looks at it once, so that no part of it goes by another document.
func (t *Throttler) live() *policies {
	if t.cfg.Registry == nil {
		return nil
	}
	return t.cfg.Registry.held.Load()
}

// policy is the policy of a key, or the one known so far beside an error about bad input.
func (t *Throttler) policy(ctx context.Context, live *policies, key string, cost int64) (*limit.Policy, error) {
	p := &t.cfg.Policy
	if live != nil {
		p = live.fallback
	}
	switch {
	case t.closed.Load():
		return p, ErrClosed
	case ctx == nil:
		return p, &limit.Error{Field: "context", Value: "nil", Bound: "must not be nil"}
	case key == "":
		return p, &limit.Error{Field: "key", Value: strconv.Quote(key), Bound: "must not be empty"}
	}
	if err := ctx.Err(); err != nil {
		return p, fmt.Errorf("throttler: %w", err)
	}
	if live != nil {
		p = live.of(key) // valid: it has been checked
	}
	if t.cfg.PolicyFor != nil {
		if its := t.cfg.PolicyFor(ctx, key); its != nil {
			if err := t.policies.check(its); err != nil {
				return p, fmt.Errorf("throttler: policy for a key: %w", err)
			}
			p = its
		}
	}
	return p, p.CheckCost(cost)
}

// refusal is the decision beside an error about bad input. It matters where the cost can never fit.
func refusal(p *limit.Policy, err error) Decision {
	if !errors.Is(err, limit.ErrCostExceedsLimit) {
		return Decision{}
	}
	least := p.Limits[0]
	for _, l := range p.Limits[1:] {
		if l.Quota() < least.Quota() {
			least = l
		}
	}
	return Decision{Limit: least, RetryAfter: limit.Never}
}

// timeout bounds a call.
func (t *Throttler) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.cfg.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, t.cfg.Timeout)
}
