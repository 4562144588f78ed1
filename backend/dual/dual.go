package dual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/tracing"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Config configures a Dual. Old, New and Decide are required.
type Config struct {
	// Old and New are the two sides. The Dual owns them: Close closes them.
	Old, New backend.Backend

	// Decide says on which side a key is, and the version of the flag that says so, both from one reading: the Decide of
	// a feature flag. It is called once for every call, from many goroutines: it must be quick.
	//
	// The version numbers the changes of the answers: of two processes the one with the larger version has the newer
	// answers, and its answer for a key becomes that of all others. So a process that overrides the flag for itself takes
	// the keys that it is asked for along. At most 2^52-2. Only CarryOver uses it; without it the version may be 0.
	Decide func(key string) (useNew bool, version uint64)

	// Flag is the name of the flag behind Decide, for traces. Empty: they name none.
	Flag string

	// CarryOver hands the counts of a key over when it changes sides. Without it the key starts afresh, and may be
	// admitted up to its Max a second time; and what was charged before it changed sides is refunded where it is now: in
	// an aligned window, which ends at the same moment on both, that makes room for as much again. Both sides must be a
	// Sealer, a Seeder and a Loader.
	CarryOver bool

	// Settle is how long processes may disagree on a side after a change: those that see it late, and calls that were
	// under way. Counts are carried over for that long and the longest window of a policy after each change, and after
	// the start of the process. Zero: 10 minutes.
	Settle time.Duration

	// Shadow chooses keys for which the other side is asked, too, in the background, after the decision. What it answers
	// is compared and counted, and decides nothing: it counts under names of its own, which take room there. A key's
	// first window differs, because it began earlier here; so does a key that is refunded or reset, which is done where
	// it is decided only; and one that is asked for so often that shadow calls overtake each other. Nil: none.
	Shadow func(key string) bool

	// ShadowQueue is how many shadow calls may wait; more are dropped, and so is what exceeds 1 MiB of keys longer than 200
	// bytes. Zero: 1024.
	ShadowQueue int

	// ShadowWorkers is how many shadow calls may be under way at once. Zero: 4.
	ShadowWorkers int
}

const (
	defaultSettle        = 10 * time.Minute
	defaultShadowQueue   = 1024
	defaultShadowWorkers = 4
)

func (c Config) withDefaults() Config {
	c.Settle = cmp.Or(c.Settle, defaultSettle)
	c.ShadowQueue = cmp.Or(c.ShadowQueue, defaultShadowQueue)
	c.ShadowWorkers = cmp.Or(c.ShadowWorkers, defaultShadowWorkers)
	return c
}

func (c Config) validate() error {
	var errs []error
	refuse := func(field string, value any, bound string) {
		errs = append(errs, &limit.Error{Field: "dual: " + field, Value: fmt.Sprint(value), Bound: bound})
	}
	for i, b := range []backend.Backend{c.Old, c.New} {
		name := [...]string{"Old", "New"}[i]
		if typednil.Is(b) {
			refuse(name, typednil.Name(b), "must not be nil")
		} else if c.CarryOver {
			_, seals := b.(backend.Sealer)
			_, seeds := b.(backend.Seeder)
			if _, loads := b.(backend.Loader); !seals || !seeds || !loads {
				refuse(name, fmt.Sprintf("%T", b), "must be a Sealer, a Seeder and a Loader to carry over")
			}
		}
	}
	if !typednil.Is(c.Old) && !typednil.Is(c.New) && reflect.TypeOf(c.Old).Comparable() && c.Old == c.New {
		refuse("New", fmt.Sprintf("%T", c.New), "must be another backend than Old")
	}
	if c.Decide == nil {
		refuse("Decide", "nil", "must not be nil")
	}
	if c.Settle < 0 || c.Settle > limit.MaxWindow {
		refuse("Settle", c.Settle, fmt.Sprintf("must be from 0 to %s", limit.MaxWindow))
	}
	if c.ShadowQueue < 0 {
		refuse("ShadowQueue", c.ShadowQueue, "must not be negative")
	}
	if c.ShadowWorkers < 0 {
		refuse("ShadowWorkers", c.ShadowWorkers, "must not be negative")
	}
	return errors.Join(errs...)
}

// Dual moves keys from one backend to another while both are in use: by percentage, without a deploy, and back.
//
// A key is on the side that Decide says, and only that side decides. If it is out of reach there is no verdict, as with
// any backend: the other side is not asked instead, for it doesn't know the counts. With CarryOver no window holds more
// than its Max whatever Decide answers, also while processes disagree (promise P10), as far as the clocks of both sides
// agree: windows that pass from one to the other end early by what the other leads, and a bucket that was given credit
// back may get it once more.
//
// The order of a release: the Dual everywhere at 0 %, with both sides up; the percentage, up and down; once it is 100 % and
// Settle and the longest window have passed, New alone. For that long after a change of the version, and after the start of a
// process, each key's first call there costs two calls more, or three if it has a floor, as those of a lease.Lease have; also
// if the key stays where it is. It leaves a fence on the other side. If that side is unreachable the call goes on without its
// counts: the decision is Bounded, with the cause ErrNotHandedOver, and the key may have been admitted up to its Max once more
// by the time that the counts meet.
type Dual struct {
	cfg     Config
	sides   [2]side // Old, New
	latest  atomic.Pointer[flagChange]
	shadows *shadows // nil for none
	closed  atomic.Bool

	handovers, redirects, bounded atomic.Int64
}

// side is one of the two backends.
type side struct {
	backend.Backend
	decided  atomic.Int64
	hangs    atomic.Int64 // until when a server of it is thought to hang, nanoseconds after start; 0 if none is
	lastTook atomic.Int64 // nanoseconds that its latest answer took, when it was not the side to decide
	start    time.Time
}

// flagChange is the latest version of the flag that was seen, and when a change of it was noticed for the last time.
type flagChange struct {
	version uint64
	noticed time.Time
}

var (
	_ backend.Backend  = (*Dual)(nil)
	_ backend.Peeker   = (*Dual)(nil)
	_ backend.Refunder = (*Dual)(nil)
	_ backend.Charger  = (*Dual)(nil)
	_ backend.Resetter = (*Dual)(nil)
	_ backend.Granter  = (*Dual)(nil)
	_ backend.Pinger   = (*Dual)(nil)
	_ backend.Loader   = (*Dual)(nil)
	_ backend.Seeder   = (*Dual)(nil)
	_ backend.Doubter  = (*Dual)(nil)
)

// New returns a Dual that owns both sides. They stay the caller's if it fails; its error joins a [*limit.Error] for
// everything that is wrong.
func New(cfg Config) (*Dual, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	now := time.Now()
	d := &Dual{cfg: cfg}
	d.sides[0].Backend, d.sides[1].Backend = cfg.Old, cfg.New
	d.sides[0].start, d.sides[1].start = now, now
	d.latest.Store(&flagChange{noticed: now}) // another process may have seen one just before
	if cfg.Shadow != nil {
		d.shadows = newShadows(cfg.ShadowQueue, cfg.ShadowWorkers)
	}
	return d, nil
}

// Take implements [backend.Backend].
func (d *Dual) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := d.refuse(req.CheckTake(ctx)); err != nil {
		return backend.Result{}, err
	}
	var result backend.Result
	place, other, err := d.count(ctx, &req, &result, takeAt)
	if err != nil {
		return backend.Result{}, err
	}
	place.decided.Add(1)
	if d.shadows != nil && d.cfg.Shadow(req.Key) {
		d.shadows.ask(other, &req, &result)
		if req.Trace != nil {
			req.Trace.Shadowed = true
		}
	}
	return result, nil
}

// Charge implements [backend.Charger]; [backend.ErrUnsupported] if the key's side can't.
func (d *Dual) Charge(ctx context.Context, req backend.Request, mark state.Mark) (result backend.Result, err error) {
	if err := d.refuse(req.CheckCharge(ctx)); err != nil {
		return result, err
	}
	_, _, err = d.count(ctx, &req, &result, func(ctx context.Context, b backend.Backend, req backend.Request) (backend.Result, error) {
		return backend.Charge(ctx, b, req, mark)
	})
	if err != nil {
		return backend.Result{}, err
	}
	return result, nil
}

// trace notes to which side the request went.
func (d *Dual) trace(t *backend.Trace, s *side, version int64, handedOver bool) {
	if t == nil {
		return
	}
	t.Side, t.Flag = "old", d.cfg.Flag
	if s == &d.sides[1] {
		t.Side = "new"
	}
	if d.cfg.CarryOver {
		t.FlagVersion = flagVersion(version) // another process may have known a newer one
	}
	if handedOver {
		tracing.HandOver(t)
	}
}

// Refund implements [backend.Refunder]; [backend.ErrUnsupported] if the key's side can't.
func (d *Dual) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return d.change(ctx, req, func(ctx context.Context, b backend.Backend, req backend.Request) error {
		return backend.Refund(ctx, b, req, receipt, amount)
	})
}

// Reset implements [backend.Resetter]; [backend.ErrUnsupported] if the key's side can't.
func (d *Dual) Reset(ctx context.Context, req backend.Request) error {
	return d.change(ctx, req, func(ctx context.Context, b backend.Backend, req backend.Request) error {
		return backend.Reset(ctx, b, req)
	})
}

// Grant implements [backend.Granter]; [backend.ErrUnsupported] if the key's side can't.
func (d *Dual) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := d.refuse(req.CheckGrant(ctx, extra)); err != nil {
		return err
	}
	return d.change(ctx, req, func(ctx context.Context, b backend.Backend, req backend.Request) error {
		return backend.Grant(ctx, b, req, extra)
	})
}

// Seed implements [backend.Seeder]; [backend.ErrUnsupported] if the key's side can't.
func (d *Dual) Seed(ctx context.Context, req backend.Request, st state.State) error {
	return d.change(ctx, req, func(ctx context.Context, b backend.Backend, req backend.Request) error {
		return backend.Seed(ctx, b, req, st)
	})
}

// change makes a change where the key is. What has not been handed over yet is brought there first.
func (d *Dual) change(ctx context.Context, req backend.Request, do func(context.Context, backend.Backend, backend.Request) error) error {
	if err := d.refuse(req.Check(ctx)); err != nil {
		return err
	}
	f, err := d.first(&req)
	if err != nil {
		return err
	}
	req.Move = f.move
	if err = do(ctx, d.sides[f.side()].Backend, req); !state.IsRedirect(err) {
		return err
	}
	m := d.moving(f, req, true)
	if err = m.do(ctx, err, do); err != nil {
		return err
	}
	return m.Incomplete()
}

// Peek implements [backend.Peeker]. It looks at both sides where the key may not have been handed over.
func (d *Dual) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := d.refuse(req.CheckTake(ctx)); err != nil {
		return backend.Result{}, err
	}
	f, err := d.first(&req)
	if err != nil {
		return backend.Result{}, err
	}
	place := &d.sides[f.side()]
	d.trace(req.Trace, place, f.version, false)
	if !d.cfg.CarryOver {
		req.Move = state.Move{}
		return backend.Peek(ctx, place.Backend, req)
	}
	loaded, err := d.moving(f, req, false).Load(ctx)
	if err != nil {
		return backend.Result{}, err
	}
	return loaded.Peek(&req), nil
}

// Load implements [backend.Loader]; [backend.ErrUnsupported] if the key's side can't. Where the key may not have been handed
// over it joins what both sides know; a side that is out of reach adds nothing, and the snapshot says so.
func (d *Dual) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := d.refuse(req.Check(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	f, err := d.first(&req)
	if err != nil {
		return backend.Snapshot{}, err
	}
	return d.moving(f, req, false).Load(ctx)
}

// Doubt implements [backend.Doubter], for both sides.
func (d *Dual) Doubt(req backend.Request) error {
	return errors.Join(backend.Doubt(d.cfg.Old, req), backend.Doubt(d.cfg.New, req))
}

// Ping implements [backend.Pinger]: it asks both sides.
func (d *Dual) Ping(ctx context.Context) error {
	if d.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return fielderrors.ErrNilContext
	}
	var errs []error
	for i := range d.sides {
		errs = append(errs, backend.Ping(ctx, d.sides[i].Backend))
	}
	return errors.Join(errs...)
}

// Close ends the shadow calls and closes both sides.
func (d *Dual) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	if d.shadows != nil {
		d.shadows.dropped.Add(d.shadows.queue.Close())
	}
	return errors.Join(d.cfg.Old.Close(), d.cfg.New.Close())
}

// refuse is err, or that the Dual is closed.
func (d *Dual) refuse(err error) error {
	if d.closed.Load() {
		return backend.ErrClosed
	}
	return err
}

// Stats is what a Dual has counted since its start.
type Stats struct {
	Old       int64 `json:"old"`        // decisions by the old side
	New       int64 `json:"new"`        // and by the new one
	Handovers int64 `json:"handovers"`  // counts of a key carried over from one side to the other
	Redirects int64 `json:"redirected"` // calls that found their key moved under a newer version, and went after it
	Bounded   int64 `json:"bounded"`    // decisions without the counts of a side that was out of reach

	Shadow ShadowStats `json:"shadow"`
}

// Stats returns the counts so far.
func (d *Dual) Stats() Stats {
	stats := Stats{
		Old: d.sides[0].decided.Load(), New: d.sides[1].decided.Load(),
		Handovers: d.handovers.Load(), Redirects: d.redirects.Load(), Bounded: d.bounded.Load(),
	}
	if d.shadows != nil {
		stats.Shadow = d.shadows.stats()
	}
	return stats
}
