package featureflag

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a Flag. Name and Source are required.
//
// OnChange and OnError are called by the flag's own goroutine, one at a time, in order, and no lock is held. The flag
// waits for them, and so does Close: they must not call it.
type Config struct {
	// Name identifies the flag in its source and chooses its keys: 1 to 128 of A-Z a-z 0-9 _ - . : /
	Name string

	// Source is where the percentage comes from: [Static], [File], [Redis], [Func] or one of your own.
	Source Source

	// Refresh is the time between two loads: a change is seen after that at the latest. Zero: 10 s. The least is 1 ms.
	Refresh time.Duration

	// Timeout bounds one load. Zero: 1 s.
	Timeout time.Duration

	// StaleAfter is the time without a successful load after which Default replaces the last good value. It must be
	// more than Refresh. Zero or negative: never. Leave it so where processes must agree, as in a migration: one that
	// is cut off from the source would decide differently from all others.
	StaleAfter time.Duration

	// Default is the percentage before the first successful load, and when stale. Zero: for no key.
	Default float64

	// OnChange is called with the new state after a change of Version, Reason, Stale or Override. Changes in quick
	// succession may be reported as one. Nil: no call.
	OnChange func(State)

	// OnError is called with the error of every load that failed and of every push that broke. Nil: no call.
	OnError func(error)
}

const (
	defaultRefresh = 10 * time.Second
	defaultTimeout = time.Second
	minRefresh     = time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.Refresh == 0 {
		c.Refresh = defaultRefresh
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.OnChange == nil {
		c.OnChange = func(State) {}
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	c.Default += 0 // -0 becomes 0
	return c
}

func (c Config) validate() error {
	errs := []error{checkName(c.Name), checkSource(c.Source), checkPercent("Default", c.Default)}
	if c.Refresh < minRefresh {
		errs = append(errs, invalid("Refresh", c.Refresh, "must be at least %v, or 0 for %v", minRefresh, defaultRefresh))
	}
	if c.Timeout < 0 {
		errs = append(errs, invalid("Timeout", c.Timeout, "must not be negative; 0 is %v", defaultTimeout))
	}
	if c.StaleAfter > 0 && c.StaleAfter <= c.Refresh {
		errs = append(errs, invalid("StaleAfter", c.StaleAfter, "must be more than Refresh, which is %v", c.Refresh))
	}
	return report(errs...)
}

// Flag is on for a percentage of keys. Make one with [New].
type Flag struct {
	cfg     Config
	current atomic.Pointer[State]

	mu     sync.Mutex // guards record and the order of stores to current
	record record

	ready  chan struct{} // closed by the first successful load
	wake   chan struct{} // holds one: a callback may be due
	push   chan struct{} // holds one: the source says that it changed
	broken chan error    // from watch to run
	closed <-chan struct{}
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New returns a flag and starts to load it in the background. [Static] is there at once, others may be awaited with
// [Flag.Ready]. The error joins an [*Error] for everything that is wrong with cfg. The flag must be closed.
func New(cfg Config) (*Flag, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &Flag{
		cfg:    cfg,
		record: record{name: cfg.Name, fallback: cfg.Default},
		ready:  make(chan struct{}),
		wake:   make(chan struct{}, 1),
		push:   make(chan struct{}, 1),
		broken: make(chan error),
		closed: ctx.Done(),
		cancel: cancel,
	}
	f.current.Store(f.record.next(&State{Percent: cfg.Default}))
	if s, ok := cfg.Source.(static); ok {
		_ = f.settle(time.Now(), Value(s), nil) // validated above
	}
	f.wg.Go(func() { f.run(ctx) })
	if w, ok := cfg.Source.(Watcher); ok {
		f.wg.Go(func() { f.watch(ctx, w) })
	}
	return f, nil
}

// Enabled reports whether the flag is on for key. It takes no lock and allocates nothing. After Close it goes on with
// the last state.
func (f *Flag) Enabled(key string) bool { return f.current.Load().Enabled(key) }

// Decide is Enabled, and the version that the answer belongs to, from one reading. The version numbers the changes of
// what the flag answers, across processes as far as its source allows: see the package's documentation. It never falls.
// It is 0 before the first load, and is also in [Flag.State].
func (f *Flag) Decide(key string) (enabled bool, version uint64) {
	s := f.current.Load()
	return s.Enabled(key), s.Version
}

// State returns what the flag answers now, and why.
func (f *Flag) State() State { return *f.current.Load() }

// Override forces the flag on or off in this process, until [Clear]. If the answers change by it, Version grows by 1.
// A killed flag stays off. It is there for tests and emergencies: other processes don't follow, for that there is
// [Kill].
func (f *Flag) Override(to Override) {
	if to > Off {
		to = Clear
	}
	f.mu.Lock()
	f.record.override = to
	f.publishLocked()
	f.mu.Unlock()
	signal(f.wake)
}

// Ready waits until a load has succeeded. If ctx ends first, the error is that of ctx and that of the latest load;
// if the flag is closed first, it is [ErrClosed].
func (f *Flag) Ready(ctx context.Context) error {
	if ctx == nil {
		return wrap(invalid("ctx", "nil", "must not be nil"), "")
	}
	select {
	case <-f.ready:
		return nil
	default:
	}
	select {
	case <-f.ready:
		return nil
	case <-f.closed:
		return wrap(ErrClosed, "flag %q: ", f.cfg.Name)
	case <-ctx.Done():
		if err := f.State().Err; err != nil {
			return errors.Join(wrap(ctx.Err(), "flag %q isn't loaded: ", f.cfg.Name), err)
		}
		return wrap(ctx.Err(), "flag %q isn't loaded: ", f.cfg.Name)
	}
}

// Close stops all refreshes and waits until the flag's goroutines have ended: at most for the load or the callback under
// way. It may be called more than once. Its error is always nil.
func (f *Flag) Close() error {
	f.cancel()
	f.wg.Wait()
	return nil
}

// run is the flag's goroutine.
func (f *Flag) run(ctx context.Context) {
	poll := time.NewTicker(f.cfg.Refresh)
	defer poll.Stop()
	var stale *time.Timer // its channel is nil where a flag never becomes stale
	expired := (<-chan time.Time)(nil)
	if f.cfg.StaleAfter > 0 {
		stale = time.NewTimer(f.cfg.StaleAfter)
		defer stale.Stop()
		expired = stale.C
	}
	load := func() {
		start := time.Now()
		err := f.load(ctx, start)
		switch {
		case ctx.Err() != nil: // closing: the load was cut short
		case err != nil:
			f.cfg.OnError(err)
		case stale != nil:
			stale.Reset(time.Until(start.Add(f.cfg.StaleAfter)))
		}
	}

	reported := f.State()
	load()
	for ctx.Err() == nil {
		if s := f.State(); changed(&s, &reported) {
			reported = s
			f.cfg.OnChange(s)
		}
		select {
		case <-ctx.Done():
		case <-f.wake:
		case <-expired:
			f.expire()
		case err := <-f.broken:
			f.cfg.OnError(err)
		case <-f.push:
			load()
		case <-poll.C:
			load()
		}
	}
}

func changed(a, b *State) bool {
	return a.Version != b.Version || a.Reason != b.Reason || a.Stale != b.Stale || a.Override != b.Override
}

func (f *Flag) load(ctx context.Context, start time.Time) error {
	bounded, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	v, err := f.cfg.Source.Load(bounded, f.cfg.Name)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return f.settle(start, v, err)
}

// settle takes the outcome of a load that began at start.
func (f *Flag) settle(start time.Time, v Value, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		err = f.record.accept(v)
	}
	f.record.err = wrap(err, "flag %q: ", f.cfg.Name)
	if err == nil {
		if f.record.loaded.IsZero() {
			defer close(f.ready) // after the state is out
		}
		f.record.loaded, f.record.stale = start, false
	}
	f.publishLocked()
	return f.record.err
}

func (f *Flag) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record.stale = !f.record.loaded.IsZero() // what was never loaded is at its default already
	f.publishLocked()
}

func (f *Flag) publishLocked() { f.current.Store(f.record.next(f.current.Load())) }

// signal leaves a mark in a channel of one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
