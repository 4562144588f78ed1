package envoylimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/limit"
)

// Service answers rate limit requests. Make one with New.
type Service struct {
	pb.UnimplementedRateLimitServiceServer

	cfg   Config
	inner backend.Backend // shared by all engines
	own   bool            // inner was made here
	held  atomic.Pointer[snapshot]
	stats statistics

	underWay atomic.Int64
	closed   atomic.Bool

	mu      sync.Mutex // guards what follows, and is held while held is replaced
	engines map[engineKey]*engine
	running sync.WaitGroup // engines that are being closed
}

// snapshot is a configuration with what decides in its domains. It never changes.
type snapshot struct {
	set     *rules.Set
	engines map[string]*engine // by domain
}

var _ pb.RateLimitServiceServer = (*Service)(nil)

// New makes a Service. It reports every problem of the configuration at once, and does no network I/O unless
// Throttler.RequireReachable says so.
func New(cfg Config) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg.withDefaults(), inner: cfg.Throttler.Backend, engines: make(map[engineKey]*engine)}
	s.stats.most = int64(s.cfg.MaxSeries)
	if s.inner == nil {
		own, err := memory.New(memory.Config{})
		if err != nil {
			return nil, err
		}
		s.inner, s.own = own, true
	}
	if err := s.SetRules(s.cfg.Rules); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Rules returns the configuration in force.
func (s *Service) Rules() *rules.Set { return s.held.Load().set }

// SetRules puts another configuration in force: requests under way end under the one they began with. What a descriptor has used
// stays, whichever rule it matches now, as long as the unit is the same; a changed number of requests applies at once. After an
// error nothing has changed.
func (s *Service) SetRules(set *rules.Set) error {
	if set == nil {
		return &limit.Error{Field: "rules", Value: "nil", Bound: "must not be nil"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return backend.ErrClosed
	}
	next := &snapshot{set: set, engines: make(map[string]*engine)}
	used, made := make(map[engineKey]bool), []*engine{}
	for d := range set.Domains() {
		at := s.engineKey(d)
		if s.engines[at] == nil {
			e, err := s.newEngine(at)
			if err != nil {
				for _, e := range made {
					delete(s.engines, e.key)
					_ = e.close()
				}
				return fmt.Errorf("envoylimit: domain %q: %w", d.Name, err)
			}
			s.engines[at], made = e, append(made, e)
		}
		next.engines[d.Name], used[at] = s.engines[at], true
	}
	s.held.Store(next)
	for at, e := range s.engines {
		if !used[at] {
			delete(s.engines, at)
			s.running.Go(func() { _ = e.retire() })
		}
	}
	return nil
}

// acquire returns the engine of a domain, to be released, and the domain's rules; nil if the domain is unknown.
func (s *Service) acquire(domain string) (*engine, *rules.Domain) {
	for {
		held := s.held.Load()
		e := held.engines[domain]
		if e == nil {
			return nil, nil
		}
		if e.acquire() || s.held.Load() == held { // or the Service is closed, which its Throttler says, too
			return e, held.set.Domain(domain)
		}
		e.release()
	}
}

// ShouldRateLimit implements the protocol.
func (s *Service) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	if s.underWay.Add(1) > int64(s.cfg.MaxRequests) {
		s.underWay.Add(-1)
		s.stats.shed.Add(1)
		return nil, overloaded()
	}
	defer s.underWay.Add(-1)
	if err := s.check(req); err != nil {
		s.stats.invalid.Add(1)
		return nil, err
	}
	if s.closed.Load() {
		s.stats.failed.Add(1)
		return nil, noVerdict(ctx, backend.ErrClosed)
	}
	c := call{service: s, req: req}
	e, d := s.acquire(req.GetDomain())
	if e == nil {
		s.stats.unknownDomain.Add(1)
		c.slots = make([]slot, len(req.GetDescriptors()))
		return c.response(), nil
	}
	defer e.release()
	if err := c.match(d); err != nil {
		s.stats.invalid.Add(1)
		return nil, err
	}
	if err := c.decide(ctx, e.throttle, e.counts); err != nil {
		s.stats.failed.Add(1)
		return nil, noVerdict(ctx, err)
	}
	return c.response(), nil
}

// Close waits for the requests under way, and gives back what leases hold. Further requests fail.
func (s *Service) Close() error {
	s.mu.Lock()
	var all []*engine
	if !s.closed.Swap(true) {
		for _, e := range s.engines {
			all = append(all, e)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, e := range all {
		errs = append(errs, e.retire())
	}
	s.running.Wait()
	if s.own && len(all) > 0 {
		errs = append(errs, s.inner.Close())
	}
	return errors.Join(errs...)
}
