package throttler

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit"
)

// ShadowObserver is an Observer that is told what shadow policies would have decided.
type ShadowObserver interface {
	// Shadow is called by a goroutine in the background, after the request was decided; the context is not the request's.
	// Close waits for it.
	Shadow(ctx context.Context, data ShadowData)
}

// ShadowData is what a shadow policy says of a request that was admitted.
type ShadowData struct {
	Policy   *limit.Policy // the one that was enforced; not to be changed or kept
	Shadow   *limit.Policy // not to be changed or kept
	Cost     int64
	Decision Decision // a denial is a request that would have been denied
	Err      error    // why there is no verdict, or a limit.ErrCostExceedsLimit; nil otherwise
	Duration time.Duration
}

// ShadowStats counts shadow requests by what came of them.
type ShadowStats struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`  // would have been denied
	Failed  int64 `json:"failed"`  // no verdict, or a refund or reset that failed
	Dropped int64 `json:"dropped"` // not asked: too many were waiting
}

// ShadowStats counts what the shadow policies would have decided, since New.
func (t *Throttler) ShadowStats() ShadowStats {
	s := &t.shadows
	return ShadowStats{
		Allowed: s.allowed.Load(), Denied: s.denied.Load(), Failed: s.failed.Load(), Dropped: s.dropped.Load(),
	}
}

const (
	shadowQueue   = 1024
	shadowWorkers = 4
	shadowTimeout = time.Second // of a call, unless Config.Timeout says otherwise
)

// shadowPolicy is a policy that is enforced on nobody. It is counted under a name that no policy can have, so that no
// decision knows of it, whatever it is called.
type shadowPolicy struct {
	told, counted limit.Policy
}

func newShadowPolicy(p *limit.Policy) *shadowPolicy {
	if len(p.Limits) == 0 {
		return nil
	}
	limits := append([]limit.Limit(nil), p.Limits...)
	return &shadowPolicy{limit.Policy{Name: p.Name, Limits: limits}, limit.Policy{Name: "?" + p.Name, Limits: limits}}
}

// shadows asks in the background what shadow policies would have decided. Its goroutines begin with the first question.
type shadows struct {
	backend  backend.Backend
	observer ShadowObserver // nil for none
	timeout  time.Duration
	always   *shadowPolicy // of the Config; nil for none

	begin   sync.Once
	queue   chan shadow // made by begin
	room    keyhash.Room
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	allowed, denied, failed, dropped atomic.Int64
}

// shadow is one question, a refund or a reset.
type shadow struct {
	key    string
	policy *limit.Policy
	shadow *shadowPolicy
	cost   int64
	charge *shadowCharge // nil if nothing can be given back
	refund int64
	reset  bool
}

func (s *shadows) init(t *Throttler) {
	s.backend, s.observer, s.timeout = t.cfg.ShadowBackend, t.observers.shadows, t.cfg.Timeout
	if s.backend == nil {
		s.backend = t.backend
	}
	if s.timeout == 0 {
		s.timeout = shadowTimeout
	}
	s.always = newShadowPolicy(&t.cfg.Shadow)
	s.ctx, s.cancel = context.WithCancel(context.Background())
}

// shadowOf is the shadow of a policy; nil if it has none. It goes by the name, as counts do: PolicyFor may have one of its
// own.
func (t *Throttler) shadowOf(live *policies, p *limit.Policy) *shadowPolicy {
	if live != nil {
		if its, ok := live.shadows[p.Name]; ok {
			return its
		}
	}
	return t.shadows.always
}

// enqueueShadow leaves the question behind what a shadow policy says of a request that was admitted. The charge may be nil.
func (t *Throttler) enqueueShadow(live *policies, req *backend.Request, c *charge) {
	its := t.shadowOf(live, req.Policy)
	if its == nil {
		return
	}
	if !t.shadows.room.Enter(req.Key) {
		t.shadows.dropped.Add(1)
		return
	}
	question := shadow{key: strings.Clone(req.Key), policy: req.Policy, shadow: its, cost: req.Cost} // the key is the caller's
	if c != nil {
		question.charge = new(shadowCharge)
		c.shadow = question.charge
		c.shadow.question = question
	}
	if !t.shadows.enqueue(question) && c != nil {
		c.shadow.taken(limit.Receipt{})
	}
}

// resetShadow leaves it behind to give a key its full quota back under the shadow, too.
func (t *Throttler) resetShadow(live *policies, req *backend.Request) {
	if its := t.shadowOf(live, req.Policy); its != nil {
		if !t.shadows.room.Enter(req.Key) {
			t.shadows.dropped.Add(1)
			return
		}
		t.shadows.enqueue(shadow{key: strings.Clone(req.Key), shadow: its, cost: req.Cost, reset: true})
	}
}

// enqueue leaves a question, whose key has entered the room, for the goroutines, if there is a place.
func (s *shadows) enqueue(q shadow) bool {
	s.begin.Do(func() {
		s.queue = make(chan shadow, shadowQueue)
		for range shadowWorkers {
			s.running.Go(s.work)
		}
	})
	select {
	case s.queue <- q:
		return true
	default:
		s.room.Leave(q.key)
		s.dropped.Add(1)
		return false
	}
}

func (s *shadows) work() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case q := <-s.queue:
			switch {
			case q.reset:
				s.reset(&q)
			case q.refund > 0:
				s.giveBack(q.charge, q.refund)
			default:
				s.ask(&q)
			}
			s.room.Leave(q.key)
		}
	}
}

func (s *shadows) ask(q *shadow) {
	start := time.Now()
	var result backend.Result
	var d Decision
	err := q.shadow.counted.CheckCost(q.cost)
	if err != nil {
		d = refusal(&q.shadow.counted, err)
		s.denied.Add(1)
	} else {
		result, err = s.take(q)
		d.fill(&result)
		switch {
		case err != nil:
			s.failed.Add(1)
		case result.Allowed:
			s.allowed.Add(1)
		default:
			s.denied.Add(1)
		}
	}
	if q.charge != nil {
		s.giveBack(q.charge, q.charge.taken(result.Receipt()))
	}
	if s.observer != nil {
		s.observer.Shadow(s.ctx, ShadowData{
			Policy: q.policy, Shadow: &q.shadow.told, Cost: q.cost, Decision: d, Err: err, Duration: time.Since(start),
		})
	}
}

func (s *shadows) take(q *shadow) (backend.Result, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	return s.backend.Take(ctx, q.request())
}

func (q *shadow) request() backend.Request {
	return backend.Request{Key: q.key, Policy: &q.shadow.counted, Cost: q.cost}
}

func (s *shadows) giveBack(c *shadowCharge, amount int64) {
	refunder, ok := s.backend.(backend.Refunder)
	if !ok || amount == 0 || c.receipt.Cost == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := refunder.Refund(ctx, c.question.request(), c.receipt, amount); err != nil {
		s.failed.Add(1)
	}
}

func (s *shadows) reset(q *shadow) {
	resetter, ok := s.backend.(backend.Resetter)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := resetter.Reset(ctx, q.request()); err != nil {
		s.failed.Add(1)
	}
}

// close ends what is under way and drops what waits. Goroutines that haven't begun don't.
func (s *shadows) close() {
	s.begin.Do(func() {})
	s.cancel()
	s.running.Wait()
}

// shadowCharge is the charge of a shadow policy beside one that may be given back, perhaps before the shadow was asked.
type shadowCharge struct {
	question shadow

	mu      sync.Mutex // guards what follows
	known   bool       // whether the receipt is
	receipt limit.Receipt
	owed    int64
}

// taken takes note of what was charged, and returns what has to be given back at once.
func (c *shadowCharge) taken(r limit.Receipt) (owed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.receipt = true, r
	return c.owed
}

// giveShadowBack gives back as much as was given back of the charge that it is the shadow of.
func (t *Throttler) giveShadowBack(c *shadowCharge, amount int64) {
	c.mu.Lock()
	known, charged := c.known, c.receipt.Cost
	c.owed = amount
	c.mu.Unlock()
	if !known || charged == 0 {
		return
	}
	key := c.question.key
	if !t.shadows.room.Enter(key) {
		t.shadows.dropped.Add(1)
		return
	}
	t.shadows.enqueue(shadow{key: key, charge: c, refund: amount})
}
