package dual

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// way is the way of one request to the place where its key is.
//
// The version of a move holds the side in the last bit, so that each version has one place, even where two processes
// number different answers of the flag alike: New is then the newer one.
type handover struct {
	backend.Request
	dual      *Dual
	place     int64        // where the request goes next: 0 for Old, 1 for New
	version   int64        // of this process's answer
	floor     *state.State // the caller's own
	sealErr   error        // why the other side could not be asked
	redirects int
}

// maxTurns bounds how often a request goes after its key; with each turn the version grows.
const maxRedirects = 8

const maxFlagVersion = 1<<52 - 2 // so that twice of it and the side fit into limit.MaxCount

// way begins where this process believes the key to be.
func (d *Dual) handover(req backend.Request) (handover, error) {
	w := handover{Request: req, dual: d, floor: req.Floor}
	w.Move = state.Move{} // whoever holds the Dual can't move its keys
	useNew, version := d.cfg.Decide(req.Key)
	if !d.cfg.CarryOver {
		w.version = moveVersion(0, useNew)
		w.place = w.version & 1
		return w, nil
	}
	if version > maxFlagVersion {
		return w, &limit.Error{
			Field: "dual: version", Value: strconv.FormatUint(version, 10),
			Bound: fmt.Sprintf("must be at most %d", uint64(maxFlagVersion)),
		}
	}
	w.version = moveVersion(version, useNew)
	w.place = w.version & 1
	if hold := d.hold(req.Policy); d.seen(version, hold) {
		w.Move = state.Move{Version: w.version, TTL: hold}
	}
	return w, nil
}

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

// side is where the request goes next, other is the other one.
func (w *handover) side() *side  { return &w.dual.sides[w.place] }
func (w *handover) other() *side { return &w.dual.sides[1-w.place] }

// follow does what a place's answer asks for, so that the request can be made once more. It fails if that can't be done.
func (w *handover) handle(ctx context.Context, refusal error) error {
	if w.redirects++; w.redirects > maxRedirects {
		return &backend.Error{Op: opMove, Kind: backend.Contended, Err: errTooManyRedirects}
	}
	moved, elsewhere := errors.AsType[*state.MovedError](refusal)
	switch {
	case elsewhere && moved.Mover != state.Migration:
		return strayed()
	case elsewhere && !w.dual.cfg.CarryOver: // another process carries over, or this one did: stay, and start afresh
		w.Move = state.Move{Version: min(moved.Version+1, limit.MaxCount), Step: state.WithoutFloor}
		return nil
	case elsewhere:
		w.redirect(moved.Version)
		return nil
	}
	return w.fetch(ctx)
}

// turn goes where the key went under a newer version than this process knew, or brings it back under this process's own
// if that is the newest.
func (w *handover) redirect(version int64) {
	d := w.dual
	d.redirects.Add(1)
	last := d.latest.Load()
	d.latest.CompareAndSwap(last, &flagChange{last.version, time.Now()}) // somebody knows of a change
	w.Floor = w.floor
	w.Move = state.Move{Version: max(version, w.version), TTL: d.hold(w.Policy)}
	w.place = w.Move.Version & 1
}

// fetch seals the key on the side that it comes from, and makes what was counted there the floor of the request. If that
// side is out of reach the request goes on without it.
func (w *handover) fetch(ctx context.Context) error {
	sealed, err := w.other().ask(ctx, func(ctx context.Context, b backend.Backend) (backend.Snapshot, error) {
		return backend.Seal(ctx, b, w.Request)
	})
	moved, elsewhere := errors.AsType[*state.MovedError](err)
	if elsewhere && moved.Mover != state.Migration {
		err, elsewhere = strayed(), false
	}
	switch {
	case err == nil:
		// The stamp is the other side's. A router that brings the key from group to group meanwhile would store it there.
		sealed.State.Unfence(state.Migration)
		if w.floor != nil {
			sealed.State.Join(w.Policy, state.At{Micros: sealed.Now}, w.floor)
		}
		w.Floor, w.Move.Step = &sealed.State, state.Adopt
		return nil
	case elsewhere:
		w.redirect(moved.Version)
		return nil
	case deadline.Ended(ctx) == nil && outOfReach(err):
		w.Move.Step, w.sealErr = state.WithoutFloor, err
		return nil
	}
	return err
}

// outOfReach reports whether an error says that a side can't be asked, rather than that the question was wrong or that
// it should be asked again.
func outOfReach(err error) bool {
	if failed, typed := errors.AsType[*backend.Error](err); typed {
		return failed.Kind != backend.Contended
	}
	return errors.Is(err, backend.ErrUnsupported) || errors.Is(err, context.DeadlineExceeded)
}

// strayed is for a side whose versions say nothing to a Dual: a router had moved the key away from it, and it is used here
// without that router.
func strayed() error { return &backend.Error{Op: opMove, Kind: backend.Misconfigured, Err: errStrayed} }

var (
	errTooManyRedirects = errors.New("the key moved again at every turn")
	errStrayed          = errors.New("a router has moved the key from this side to another group")
)

const (
	opMove = "move"

	hangsFor      = time.Second           // is how long a server that did not answer is thought to hang
	hangs         = 50 * time.Millisecond // without an answer
	shortPatience = 20 * time.Millisecond
)

// ask asks a side that isn't the one to decide, and notes whether a server of it hangs.
func (s *side) ask(ctx context.Context, question func(context.Context, backend.Backend) (backend.Snapshot, error)) (backend.Snapshot, error) {
	limited, cancel, finds := s.patience(ctx)
	defer cancel()
	begin := time.Now()
	snapshot, err := question(limited, s.Backend)
	switch {
	case err != nil && outOfReach(err) && time.Since(begin) >= hangs:
		s.hangs.Store(s.elapsed() + int64(hangsFor))
	case err == nil && finds:
		s.hangs.Store(0)
	}
	return snapshot, err
}

// patience is how long to wait for an answer: half of the caller's time, so that there is some left to decide without it,
// and little while a server of the side is known to hang; others may be well. One caller at a time finds out whether it
// still does.
func (s *side) patience(ctx context.Context) (limited context.Context, cancel context.CancelFunc, finds bool) {
	until, now := s.hangs.Load(), s.elapsed()
	if until > 0 {
		finds = now >= until && s.hangs.CompareAndSwap(until, now+int64(hangsFor))
		if !finds {
			limited, cancel = context.WithTimeout(ctx, shortPatience)
			return limited, cancel, false
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		limited, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		return limited, cancel, finds
	}
	return ctx, func() {}, finds
}

func (s *side) elapsed() int64 { return int64(time.Since(s.start)) }

// doubt makes a result say that it doesn't know the other side's counts.
func (w *handover) doubt(r *backend.Result) {
	r.Guarantee, r.Cause = max(r.Guarantee, backend.Bounded), errors.Join(backend.ErrNotHandedOver, w.sealErr, r.Cause)
}

// load is what the key's side knows, joined with what the other side knows if the key may not have been handed over.
func (w *handover) load(ctx context.Context) (backend.Snapshot, error) {
	snapshot, err := backend.Load(ctx, w.side().Backend, w.Request)
	if err != nil {
		return backend.Snapshot{}, err
	}
	now := state.At{Micros: snapshot.Now}
	adopted, sealed := snapshot.State.Fence(state.Migration, now)
	if w.dual.cfg.CarryOver && (sealed > adopted || adopted < w.Move.Version) {
		there, err := w.other().ask(ctx, func(ctx context.Context, b backend.Backend) (backend.Snapshot, error) {
			return backend.Load(ctx, b, w.Request)
		})
		if err != nil {
			snapshot.Lacks = errors.Join(backend.ErrNotHandedOver, err, snapshot.Lacks)
		} else {
			snapshot.State, snapshot.Lacks = state.Merge(snapshot.State, there.State, now), errors.Join(snapshot.Lacks, there.Lacks)
			if there.Source == backend.Replica {
				snapshot.Source = backend.Replica
			}
		}
	}
	snapshot.State.Unfence(state.Migration)
	return snapshot, nil
}

// trace records the side that the request goes to.
func (w *handover) trace() {
	t := w.Trace
	if t == nil {
		return
	}
	t.Side, t.Flag = [...]string{"old", "new"}[w.place], w.dual.cfg.Flag
	if w.dual.cfg.CarryOver {
		t.FlagVersion = flagVersion(max(w.version, w.Move.Version)) // another process may have known a newer one
	}
	if w.Move.Step == state.Adopt {
		t.HandOver()
	}
}
