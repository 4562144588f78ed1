package insight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/internal/workqueue"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// ShadowConfig configures a Shadow. Backend is required; the zero value of everything else is a documented default.
type ShadowConfig struct {
	// Backend counts the shadows. The Shadow doesn't close it. If it is the Throttler's own, processes share the shadow's counts
	// as they share those of the limits, and each key takes as much room and as many calls again: a Memory or Lease that is full
	// by MaxKeys then evicts keys that are enforced, and so may a Redis at its maxmemory and Memcached. Give the Shadow a
	// backend of its own where that may happen.
	Backend backend.Backend

	// Policy is the shadow of every policy for which the Throttler's Policies name none. Zero: none.
	Policy limit.Policy

	// Timeout bounds each call to the Backend. Zero: 1 s.
	Timeout time.Duration

	// Observer is called with an Event of throttler.OpShadow for each shadow decision, in the background: a denial is a request
	// that would have been denied. The context is not that of the request. If nil, no observer is called.
	Observer throttler.Observer
}

func (c *ShadowConfig) validate() error {
	var errs []error
	if typednil.Is(c.Backend) {
		errs = append(errs, &limit.Error{Field: "Backend", Value: typednil.Name(c.Backend), Bound: "must not be nil"})
	}
	for _, o := range typednil.Within(c.Observer) {
		errs = append(errs, &limit.Error{Field: "Observer", Value: typednil.Name(o), Bound: "must not be a nil pointer"})
	}
	if c.Policy.Name != "" || len(c.Policy.Limits) > 0 {
		if err := c.Policy.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("shadow policy: %w", err))
		}
	}
	if c.Timeout < 0 {
		errs = append(errs, &limit.Error{Field: "Timeout", Value: c.Timeout.String(), Bound: "must not be negative"})
	}
	return errors.Join(errs...)
}

// ShadowCounts counts shadow requests by outcome.
type ShadowCounts struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`  // would have been denied
	Failed  int64 `json:"failed"`  // no verdict, or a refund, reset or grant that failed
	Dropped int64 `json:"dropped"` // not sent: too many were waiting, or Close came first
}

const (
	shadowQueue       = 1024
	shadowWorkers     = 4
	shadowTimeout     = time.Second
	maxShadowPolicies = 4096
)

// Shadow is an Observer that counts requests under policies that are not enforced, to see what limits would do before they are
// set. A shadow should be stricter than the enforced policy: only admitted requests are counted again, in the background.
// No request waits for it or fails by it. Its counts are its own, whatever its name. What a Reservation gives back goes back
// to the shadow, too, and so do a Reset and a Grant. Make one with NewShadow.
//
// At most four calls are under way at a time: with a server 1 ms away that is about 4,000 requests a second. Requests are
// dropped, and counted in Counts, when 1,024 wait, or 1 MiB of keys longer than 200 bytes. A dropped request is not charged, so
// later ones are denied less often than they would be.
type Shadow struct {
	cfg   ShadowConfig
	queue *workqueue.Queue[shadowTask]

	// counted are the policies that the backend sees, by shadow policy. They have names that no policy can have, so that no
	// decision sees their counts, and keep their addresses.
	counted     sync.Map // *limit.Policy to *limit.Policy
	countedSize atomic.Int64

	allowed, denied, failed, dropped atomic.Int64
}

// shadowTask is a request, its settlement, a reset or a grant under a shadow policy.
type shadowTask struct {
	policy, shadow *limit.Policy
	cost           int64
	charge         *shadowCharge // nil if it is not settled
	settle         int64         // what is given back, or if negative charged on top
	reset, grant   bool
}

var _ throttler.CommitObserver = (*Shadow)(nil)

// NewShadow makes a Shadow. It reports every problem of the configuration at once.
func NewShadow(cfg ShadowConfig) (*Shadow, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("insight: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = shadowTimeout
	}
	cfg.Policy.Limits = append([]limit.Limit(nil), cfg.Policy.Limits...)
	s := &Shadow{cfg: cfg}
	s.queue = workqueue.New(shadowQueue, shadowWorkers, s.run)
	return s, nil
}

// Start implements [throttler.Observer].
func (s *Shadow) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

// End implements [throttler.Observer].
func (s *Shadow) End(_ context.Context, e *throttler.Event) {
	switch {
	case e.Err != nil:
	case e.Op == throttler.OpReset:
		s.enqueue(e.Key, shadowTask{shadow: s.shadowOf(e), cost: e.Cost, reset: true})
	case e.Op == throttler.OpGrant:
		s.enqueue(e.Key, shadowTask{shadow: s.shadowOf(e), cost: e.Cost, grant: true})
	}
}

// Commit implements [throttler.CommitObserver].
func (s *Shadow) Commit(_ context.Context, e *throttler.Event) throttler.Settler {
	task := shadowTask{policy: e.Policy, shadow: s.shadowOf(e), cost: e.Cost}
	if e.Refundable && task.shadow != nil {
		task.charge = &shadowCharge{shadow: s, task: task}
	}
	if !s.enqueue(e.Key, task) || task.charge == nil {
		return nil
	}
	return task.charge
}

// Counts returns what the shadow policies have decided so far.
func (s *Shadow) Counts() ShadowCounts {
	return ShadowCounts{
		Allowed: s.allowed.Load(), Denied: s.denied.Load(), Failed: s.failed.Load(), Dropped: s.dropped.Load(),
	}
}

// Close ends the calls under way and drops the requests that wait.
func (s *Shadow) Close() error {
	s.dropped.Add(s.queue.Close())
	return nil
}

// shadowOf returns the shadow of the event's policy; nil if it has none.
func (s *Shadow) shadowOf(e *throttler.Event) *limit.Policy {
	if e.Shadow != nil || len(s.cfg.Policy.Limits) == 0 {
		return e.Shadow
	}
	return &s.cfg.Policy
}

func (s *Shadow) enqueue(key string, task shadowTask) bool {
	if task.shadow == nil {
		return false
	}
	if !s.queue.Add(key, task) {
		s.dropped.Add(1)
		return false
	}
	return true
}

func (s *Shadow) run(ctx context.Context, key string, task shadowTask) {
	start := time.Now()
	req := backend.Request{Key: key, Policy: s.countedAs(task.shadow), Cost: task.cost}
	switch {
	case task.reset:
		s.giveBack(ctx, func(ctx context.Context) error { return backend.Reset(ctx, s.cfg.Backend, req) })
	case task.grant:
		s.giveBack(ctx, func(ctx context.Context) error { return backend.Grant(ctx, s.cfg.Backend, req, req.Cost) })
	case task.settle != 0:
		s.settle(ctx, req, task.charge.receipt, task.settle)
	default:
		d, receipt, err := s.take(ctx, req)
		if task.charge != nil {
			s.settle(ctx, req, receipt, task.charge.taken(key, receipt))
		}
		if s.cfg.Observer != nil {
			s.observe(ctx, &throttler.Event{
				Op: throttler.OpShadow, Key: key, Policy: task.policy, Shadow: task.shadow, Cost: task.cost,
				Decision: d, Err: err, Duration: time.Since(start),
			})
		}
	}
}

func (s *Shadow) observe(ctx context.Context, e *throttler.Event) {
	s.cfg.Observer.End(s.cfg.Observer.Start(ctx, e), e)
}

func (s *Shadow) take(ctx context.Context, req backend.Request) (d throttler.Decision, receipt state.Receipt, err error) {
	if err := req.Policy.CheckCost(req.Cost); err != nil { // a limit that can never hold it
		s.denied.Add(1)
		return throttler.Decision{RetryAfter: limit.Never}, receipt, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	result, err := s.cfg.Backend.Take(ctx, req)
	switch {
	case err != nil:
		s.failed.Add(1)
	case result.Allowed:
		s.allowed.Add(1)
	default:
		s.denied.Add(1)
	}
	return throttler.NewDecision(&result), result.Receipt(), err
}

// settle gives amount of a charge back, or charges -amount on top of it.
func (s *Shadow) settle(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) {
	if amount == 0 || receipt.Cost == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var err error
	if amount > 0 {
		err = backend.Refund(ctx, s.cfg.Backend, req, receipt, amount)
	} else {
		req.Cost = -amount
		_, err = backend.Charge(ctx, s.cfg.Backend, req, receipt.Mark())
	}
	if err != nil && !errors.Is(err, backend.ErrUnsupported) {
		s.failed.Add(1)
	}
}

// giveBack makes a reset or a grant, if the backend can.
func (s *Shadow) giveBack(ctx context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := do(ctx); err != nil && !errors.Is(err, backend.ErrUnsupported) {
		s.failed.Add(1)
	}
}

// countedAs returns the policy that the backend sees for a shadow.
func (s *Shadow) countedAs(p *limit.Policy) *limit.Policy {
	if counted, ok := s.counted.Load(p); ok {
		return counted.(*limit.Policy)
	}
	if s.countedSize.Add(1) > maxShadowPolicies {
		s.counted.Clear()
		s.countedSize.Store(1)
	}
	counted, _ := s.counted.LoadOrStore(p, &limit.Policy{Name: "?" + p.Name, Limits: p.Limits})
	return counted.(*limit.Policy)
}

// shadowCharge is the charge of a shadow beside one that may be given back, perhaps before the shadow has been charged.
type shadowCharge struct {
	shadow *Shadow
	task   shadowTask

	mu      sync.Mutex // guards what follows
	key     string     // with the receipt; empty until then
	receipt state.Receipt
	pending int64 // settled before the receipt was known: given back, or if negative charged on top
}

// taken records what was charged, and returns what has to be settled at once.
func (c *shadowCharge) taken(key string, r state.Receipt) (pending int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key, c.receipt = key, r
	return c.pending
}

// GivenBack implements [throttler.Settler].
func (c *shadowCharge) GivenBack(amount int64) { c.settle(amount) }

// Overrun implements [throttler.Settler].
func (c *shadowCharge) Overrun(amount int64) { c.settle(-amount) }

func (c *shadowCharge) settle(amount int64) {
	c.mu.Lock()
	key, charged := c.key, c.receipt.Cost
	c.pending = amount
	c.mu.Unlock()
	if key == "" || charged == 0 {
		return
	}
	task := c.task
	task.charge, task.settle = c, amount
	c.shadow.enqueue(key, task)
}
