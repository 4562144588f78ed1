package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

const (
	flagName = "limits-on-redis"

	// callTimeout is generous: servers, application and clients share this machine.
	callTimeout = 5 * time.Second
)

// application is what is released.
type application struct {
	o       options
	servers *servers
	prefix  string // of what it stores: an earlier run on the same servers left other names behind

	processes []*process
	shadowing atomic.Bool
}

// process is what one process of the application holds: in the example there are two in one, with nothing in common but
// the servers and the file of the flag.
type process struct {
	flag *featureflag.Flag
	dual *dual.Dual

	mu        sync.RWMutex // guards the fields below, and that calls grow under the right throttler
	old, new  backend.Pinger
	counts    backend.Backend
	throttler *throttler.Throttler
	calls     *sync.WaitGroup // under way on throttler
}

// startApplication starts the processes half a refresh apart, so that they see changes of the flag apart.
func startApplication(ctx context.Context, o options, s *servers, flags featureflag.Source) (*application, error) {
	a := &application{o: o, servers: s, prefix: "mig:" + strconv.FormatInt(time.Now().UnixMilli(), 36) + ":"}
	a.shadowing.Store(true)
	for i := range 2 {
		if i > 0 {
			if err := pause(ctx, o.refresh/2); err != nil {
				return nil, errors.Join(err, a.close())
			}
		}
		p, err := a.startProcess(ctx, flags)
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
		a.processes = append(a.processes, p)
	}
	return a, nil
}

// startProcess is what an application does to be migrated.
func (a *application) startProcess(ctx context.Context, flags featureflag.Source) (*process, error) {
	flag, err := featureflag.New(featureflag.Config{Name: flagName, Source: flags, Refresh: a.o.refresh})
	if err != nil {
		return nil, err
	}
	old, err := memcached.New([]string{a.servers.memcached}, memcached.Config{Prefix: a.prefix, Timeout: callTimeout})
	if err != nil {
		return nil, errors.Join(err, flag.Close())
	}
	groups, err := a.openRouter()
	if err != nil {
		return nil, errors.Join(err, old.Close(), flag.Close())
	}
	d, err := dual.New(dual.Config{
		Old: old, New: groups, Decide: flag.Decide,
		CarryOver: !a.o.withoutCarryOver, Settle: a.o.settle,
		Shadow: func(string) bool { return a.shadowing.Load() },
	})
	if err != nil {
		return nil, errors.Join(err, groups.Close(), old.Close(), flag.Close())
	}
	p := &process{flag: flag, dual: d}
	err = errors.Join(flag.Ready(ctx), d.Ping(ctx))
	if err == nil {
		err = p.use(d, a.o)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close(), flag.Close())
	}
	p.old, p.new = old, groups
	return p, nil
}

func (a *application) openRouter() (*router.Router, error) {
	redisbackend.LogTo(nil) // the report has the errors
	return router.Open(a.servers.topology, router.Config{Backend: redisbackend.Config{Prefix: a.prefix, Timeout: callTimeout}})
}

// use makes later calls be decided by counts.
func (p *process) use(counts backend.Backend, o options) error {
	t, err := throttler.New(throttler.Config{
		Backend: counts, Policy: o.policy(),
		Failure: throttler.FailClosed, // what fails is to be seen as a failure, not made good by local counts
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.throttler, p.calls = counts, t, new(sync.WaitGroup)
	return nil
}

// leaveMemcached is the deploy of the next version of the application, which knows Redis only. Calls under way end as
// they began. It is safe once the carry-over is over: no key waits to be handed over then, and no seal is left that a
// router by itself could not lift.
func (a *application) leaveMemcached(ctx context.Context, p *process) error {
	groups, err := a.openRouter()
	if err != nil {
		return err
	}
	before, calls := p.throttler, p.calls
	if err := groups.Ping(ctx); err != nil {
		return errors.Join(err, groups.Close())
	}
	if err := p.use(groups, a.o); err != nil {
		return errors.Join(err, groups.Close())
	}
	calls.Wait()
	p.mu.Lock()
	p.new = groups
	p.mu.Unlock()
	return errors.Join(before.Close(), p.dual.Close(), p.flag.Close())
}

// allow asks for one request of a key.
func (p *process) allow(key string) (throttler.Decision, error) {
	p.mu.RLock()
	t, calls := p.throttler, p.calls
	calls.Add(1)
	p.mu.RUnlock()
	defer calls.Done()
	return t.Allow(context.Background(), key)
}

// sides are what can be asked whether the two sides answer.
func (p *process) sides() (old, new backend.Pinger) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.old, p.new
}

// stats is what the processes have counted so far, together.
func (a *application) stats() dual.Stats {
	var sum dual.Stats
	for _, p := range a.processes {
		sum = combine(sum, p.dual.Stats(), 1)
	}
	return sum
}

// combine is s + sign x t.
func combine(s, t dual.Stats, sign int64) dual.Stats {
	return dual.Stats{
		Old: s.Old + sign*t.Old, New: s.New + sign*t.New,
		Handovers: s.Handovers + sign*t.Handovers, Redirects: s.Redirects + sign*t.Redirects, Bounded: s.Bounded + sign*t.Bounded,
		Shadow: dual.ShadowStats{
			Agreed: s.Shadow.Agreed + sign*t.Shadow.Agreed, Denied: s.Shadow.Denied + sign*t.Shadow.Denied,
			Allowed: s.Shadow.Allowed + sign*t.Shadow.Allowed, Remaining: s.Shadow.Remaining + sign*t.Shadow.Remaining,
			Failed: s.Shadow.Failed + sign*t.Shadow.Failed, Dropped: s.Shadow.Dropped + sign*t.Shadow.Dropped,
		},
	}
}

// close ends the processes. The flag and the Dual may be closed already, by leaveMemcached.
func (a *application) close() error {
	var errs []error
	for _, p := range a.processes {
		errs = append(errs, p.throttler.Close(), p.counts.Close(), p.dual.Close(), p.flag.Close())
	}
	return errors.Join(errs...)
}

// pause waits, unless the command is interrupted.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
}
