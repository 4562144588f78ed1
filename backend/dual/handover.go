package dual

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/handover"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// The version of a move holds the side in the last bit, so that each version has one place, even where two processes number
// different answers of the flag alike: New is then the newer one.

const maxFlagVersion = 1<<52 - 2 // so that twice of it and the side fit into limit.MaxCount

// moving is one request on its way to the side where its key is.
type moving struct {
	*handover.Handover[place]
	dual   *Dual
	policy *limit.Policy
	first
}

// first is where a request is made first: at the side where this process believes its key to be.
type first struct {
	version int64 // of this process's answer
	move    state.Move
}

func (f *first) side() int64 { return f.version & 1 }

func (d *Dual) first(req *backend.Request) (f first, err error) {
	useNew, version := d.cfg.Decide(req.Key)
	if !d.cfg.CarryOver {
		f.version = moveVersion(0, useNew)
		return f, nil
	}
	if version > maxFlagVersion {
		return f, &limit.Error{
			Field: "dual: version", Value: strconv.FormatUint(version, 10),
			Bound: fmt.Sprintf("must be at most %d", uint64(maxFlagVersion)),
		}
	}
	f.version = moveVersion(version, useNew)
	if hold := d.hold(req.Policy); d.seen(version, hold) {
		f.move = state.Move{Version: f.version, TTL: hold}
	}
	return f, nil
}

func (d *Dual) moving(f first, req backend.Request, change bool) *moving {
	req.Move = state.Move{} // the caller can't move a Dual's keys
	m := &moving{dual: d, policy: req.Policy, first: f}
	m.Handover = handover.New(m, state.Migration, m.route(f.side(), f.move), req, change)
	return m
}

func (m *moving) route(side int64, move state.Move) handover.Route[place] {
	next := handover.Route[place]{Owner: place{&m.dual.sides[side], true}, Move: move}
	if m.dual.cfg.CarryOver {
		next.Previous = []place{{&m.dual.sides[1-side], false}}
	}
	return next
}

func (m *moving) other() *side {
	if m.Owner.side == &m.dual.sides[0] {
		return &m.dual.sides[1]
	}
	return &m.dual.sides[0]
}

// countCall takes or charges at a side.
type countCall func(context.Context, backend.Backend, backend.Request) (backend.Result, error)

func takeAt(ctx context.Context, b backend.Backend, req backend.Request) (backend.Result, error) {
	return b.Take(ctx, req)
}

// count makes a call that counts where the key is, and returns that side and the other one.
func (d *Dual) count(ctx context.Context, req *backend.Request, into *backend.Result, call countCall) (place, other *side, err error) {
	f, err := d.first(req)
	if err != nil {
		return nil, nil, err
	}
	place, other = &d.sides[f.side()], &d.sides[1-f.side()]
	req.Move = f.move
	*into, err = call(ctx, place.Backend, *req)
	req.Move = state.Move{}
	if state.IsRedirect(err) {
		return d.countMoving(ctx, f, *req, err, into, call)
	}
	d.trace(req.Trace, place, f.version, false)
	if err == nil && f.move.Version != 0 { // what the other side had lost was not handed over
		into.Lower(backend.Doubt(other.Backend, *req))
	}
	into.State.Unfence(state.Migration)
	return place, other, err
}

func (d *Dual) countMoving(
	ctx context.Context, f first, req backend.Request, answer error, into *backend.Result, call countCall,
) (place, other *side, err error) {
	m := d.moving(f, req, false)
	var result backend.Result
	err = m.do(ctx, answer, func(ctx context.Context, b backend.Backend, req backend.Request) (err error) {
		result, err = call(ctx, b, req)
		return err
	})
	d.trace(req.Trace, m.Owner.side, max(m.version, m.Move.Version), m.HandedOver)
	if err == nil {
		if m.Move.Step == state.WithoutFloor {
			d.bounded.Add(1)
		}
		m.Finish(&result)
		*into = result
	}
	return m.Owner.side, m.other(), err
}

// do makes a call on the side where the key is.
func (m *moving) do(ctx context.Context, answer error, call func(context.Context, backend.Backend, backend.Request) error) error {
	err := m.Do(ctx, answer, func(ctx context.Context, p place, req backend.Request) error { return call(ctx, p.Backend, req) })
	if m.HandedOver {
		m.dual.handovers.Add(1)
	}
	if moved, ok := errors.AsType[*state.MovedError](err); ok && moved.Mover != state.Migration {
		return strayed()
	}
	return err
}

// Redirect implements [handover.Mover]: the key went where a newer version than this process's says, or comes back under this
// process's own if that is the newest.
func (m *moving) Redirect(_ context.Context, _ place, version int64) (handover.Route[place], error) {
	d := m.dual
	if !d.cfg.CarryOver { // another process carries over, or this one did: stay, and start afresh
		next := m.Route
		next.Move = state.Move{Version: min(version+1, limit.MaxCount), Step: state.WithoutFloor}
		return next, nil
	}
	d.redirects.Add(1)
	last := d.latest.Load()
	d.latest.CompareAndSwap(last, &flagChange{last.version, time.Now()}) // some process knows of a change
	version = max(version, m.version)
	return m.route(version&1, state.Move{Version: version, TTL: d.hold(m.policy)}), nil
}

// Unreachable implements [handover.Mover]: not if the question was wrong, or should be asked again.
func (m *moving) Unreachable(err error) bool { return outOfReach(err) }

func outOfReach(err error) bool {
	if failed, typed := errors.AsType[*backend.Error](err); typed {
		return failed.Kind != backend.Contended
	}
	return errors.Is(err, backend.ErrUnsupported) || errors.Is(err, context.DeadlineExceeded)
}

// place is a side as a place of counts.
type place struct {
	*side
	decides bool
}

// Seal implements [handover.Place].
func (p place) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	sealed, err := p.ask(ctx, func(ctx context.Context, b backend.Backend) (backend.Snapshot, error) {
		return backend.Seal(ctx, b, req)
	})
	if moved, ok := errors.AsType[*state.MovedError](err); ok && moved.Mover != state.Migration {
		err = strayed()
	}
	return sealed, err
}

// Seed implements [handover.Place].
func (p place) Seed(ctx context.Context, req backend.Request, st state.State) error {
	return backend.Seed(ctx, p.Backend, req, st)
}

// Load implements [handover.Place].
func (p place) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	load := func(ctx context.Context, b backend.Backend) (backend.Snapshot, error) {
		return backend.Load(ctx, b, req)
	}
	if p.decides {
		return load(ctx, p.Backend)
	}
	return p.ask(ctx, load)
}

// Doubt implements [handover.Place].
func (p place) Doubt(req backend.Request) error { return backend.Doubt(p.Backend, req) }

// hold is how long counts are carried over after a change.
func (d *Dual) hold(p *limit.Policy) time.Duration {
	return min(state.Horizon(p)+d.cfg.Settle, 2*limit.MaxWindow)
}

// moveVersion is the version of a move to a side under a version of the flag.
func moveVersion(version uint64, useNew bool) int64 {
	n := int64(version+1) * 2
	if useNew {
		n++
	}
	return n
}

// flagVersion is the version of the flag that a moveVersion was made of.
func flagVersion(move int64) uint64 { return uint64(move/2 - 1) }

// seen reports whether a change of the flag was seen less than hold ago: windows that were alive then may be still.
func (d *Dual) seen(version uint64, hold time.Duration) bool {
	last := d.latest.Load()
	if version > last.version {
		d.latest.CompareAndSwap(last, &flagChange{version, time.Now()})
		return true
	}
	return time.Since(last.noticed) < hold
}

// strayed is for a side whose versions say nothing to a Dual: a router had moved the key away from it, and it is used here
// without that router.
func strayed() error {
	return &backend.Error{Op: handover.Op, Kind: backend.Misconfigured, Err: errStrayed}
}

var errStrayed = errors.New("a router has moved the key from this side to another group")

const (
	hangsFor      = time.Second            // is how long a server that did not answer is thought to hang
	hangs         = 50 * time.Millisecond  // without an answer
	shortPatience = 20 * time.Millisecond  // or twice as long as the side's latest answer took
	maxLastTook   = 250 * time.Millisecond // an answer that took longer counts as this
)

// ask asks a side that isn't the one to decide, and notes whether a server of it hangs.
func (s *side) ask(ctx context.Context, question func(context.Context, backend.Backend) (backend.Snapshot, error)) (backend.Snapshot, error) {
	limited, cancel, finds := s.patience(ctx)
	defer cancel()
	begin := time.Now()
	snapshot, err := question(limited, s.Backend)
	waited := time.Since(begin)
	switch {
	case err == nil:
		s.lastTook.Store(int64(min(waited, maxLastTook)))
		if finds {
			s.hangs.Store(0)
		}
	case errors.Is(ctx.Err(), context.Canceled): // shows nothing about the side
		if finds {
			s.hangs.Store(s.elapsed()) // the next caller finds out
		}
	case outOfReach(err) && waited >= hangs:
		s.hangs.Store(s.elapsed() + int64(hangsFor))
	}
	return snapshot, err
}

// patience is how long to wait for an answer: little while a server of the side is thought to hang, but long enough for others
// that are well. One caller at a time finds out whether it still does.
func (s *side) patience(ctx context.Context) (limited context.Context, cancel context.CancelFunc, finds bool) {
	until, now := s.hangs.Load(), s.elapsed()
	if until > 0 {
		finds = now >= until && s.hangs.CompareAndSwap(until, now+int64(hangsFor))
		if !finds {
			limited, cancel = context.WithTimeout(ctx, max(shortPatience, 2*time.Duration(s.lastTook.Load())))
			return limited, cancel, false
		}
	}
	return ctx, func() {}, finds
}

func (s *side) elapsed() int64 { return int64(time.Since(s.start)) }
