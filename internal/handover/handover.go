// Package handover drives requests whose key may have counts at several places: it seals the previous places, merges what they
// held and brings it to the owner, and follows a key that has moved on (limit/state/handover.go has the protocol). Who owns a
// key, and what a place is, is up to a [Mover].
package handover

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

// Place is what has counts of keys. All requests to it name the move that they act under.
type Place interface {
	Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error)
	Seed(ctx context.Context, req backend.Request, st state.State) error
	Load(ctx context.Context, req backend.Request) (backend.Snapshot, error)
	Doubt(req backend.Request) error // as backend.Doubter
}

// Mover says where keys are.
type Mover[P Place] interface {
	// Redirect returns the route of a request, for another attempt, after a place answered that the key has left it under a
	// version of this mover.
	Redirect(ctx context.Context, from P, version int64) (Route[P], error)

	// Unreachable reports whether the request goes on without a place that could not be sealed, rather than fails.
	Unreachable(err error) bool
}

// Route is where a key is, and where it may have counts. The step of its move says how far the handover has come:
//
//   - Ask: the owner may have adopted the key already. If not, the previous places are sealed next.
//   - Adopt: they are sealed, and what they held goes to the owner.
//   - WithoutFloor: one of them can't be sealed, and the request goes on without it.
type Route[P Place] struct {
	Owner    P
	Previous []P
	Move     state.Move // Version 0 if the key doesn't move
	Err      error      // why the Step is WithoutFloor
}

// Handover is one request. Make one with [New].
type Handover[P Place] struct {
	Route[P]
	HandedOver bool // whether counts were brought to the owner

	mover     Mover[P]
	kind      state.Mover
	req       backend.Request // as it goes to the owner
	floor     *state.State    // the caller's own
	fetched   *state.State    // what the previous places held; nil before they are sealed
	sealedAt  state.At        // when the last of them was sealed, by its clock
	beside    bool            // req acts under a move of the caller's: the key is handed over by requests beside it
	change    bool            // req can't carry counts
	seedFirst bool            // what was fetched has to be at the owner before req
}

// New returns the handover of a request. A change is a request that can't carry counts, such as a refund: a separate seed
// brings them to the owner before it. A take with a floor of its own needs that seed, too: two copies of one window have to be
// joined before a floor of a later window, otherwise refunds that one of them lacks are lost. If the request acts under a move
// of its caller, that stays, and the key is handed over by separate requests.
func New[P Place](mover Mover[P], kind state.Mover, route Route[P], req backend.Request, change bool) *Handover[P] {
	h := &Handover[P]{mover: mover, kind: kind, req: req, floor: req.Floor, beside: req.Move != (state.Move{}), change: change}
	h.follow(route)
	return h
}

// follow starts afresh by a route.
func (h *Handover[P]) follow(route Route[P]) {
	h.Route, h.seedFirst = route, h.change || h.floor != nil
	h.setStep(route.Move.Step, nil, route.Err)
}

// setStep notes how far the handover has come.
func (h *Handover[P]) setStep(step state.Step, fetched *state.State, err error) {
	h.Move.Step, h.fetched, h.Err = step, fetched, err
	if !h.beside {
		h.req.Move, h.req.Floor = h.Move, cmp.Or(fetched, h.floor)
	}
}

// maxAttempts bounds the attempts of one request. With each the route is newer, or the handover has come further.
const maxAttempts = 9

var errTooManyRedirects = errors.New("the key moved again at every attempt")

// Op is the operation in errors about handovers.
const Op = "move"

// Do makes a call to the owner. If the answer demands it, it hands the key over or follows it, and calls again. Most requests
// need no Handover: a caller may make the first attempt without one, and pass its error as the answer; nil if there was none.
func (h *Handover[P]) Do(ctx context.Context, answer error, call func(context.Context, P, backend.Request) error) error {
	for range maxAttempts {
		err, seeding := answer, false
		if answer = nil; err == nil {
			err = h.seed(ctx)
			if seeding = err != nil; !seeding {
				err = call(ctx, h.Owner, h.req)
			}
		}
		switch version := h.redirected(err); {
		case errors.Is(err, state.ErrFloorWanted) && (seeding || !h.beside): // under the caller's move, the caller brings the floor
			err = h.fetch(ctx)
		case version > 0:
			err = h.redirect(ctx, h.Owner, version)
		default:
			h.HandedOver = h.HandedOver || err == nil && h.Move.Step == state.Adopt
			return err
		}
		if err != nil {
			return err
		}
	}
	return &backend.Error{Op: Op, Kind: backend.Contended, Err: errTooManyRedirects}
}

// Incomplete is the error of a call that must see all counts, such as a seal, if a previous place was unreachable; otherwise
// nil. The call was made at the owner.
func (h *Handover[P]) Incomplete() error {
	if h.Err == nil {
		return nil
	}
	return &backend.Error{Op: Op, Kind: backend.Unavailable, MayHaveCharged: true, Err: errors.Join(backend.ErrNotHandedOver, h.Err)}
}

// Finish lowers the guarantee of a take's result by what the handover lacks, and removes the mover's fence from its state.
func (h *Handover[P]) Finish(result *backend.Result) {
	if h.Move.Step == state.WithoutFloor { // counts of a previous place may be missing
		result.Lower(errors.Join(backend.ErrNotHandedOver, h.Err))
	}
	result.Lower(h.lost())
	result.State.Unfence(h.kind)
}

// lost says why previous places may have lost counts, which are then not handed over.
func (h *Handover[P]) lost() error {
	if h.Move.Version == 0 {
		return nil
	}
	var lost error
	for _, p := range h.Previous {
		if err := p.Doubt(h.req); err != nil {
			lost = errors.Join(lost, err)
		}
	}
	return lost
}

// seed makes a step of the handover in a separate request, if the caller's request can't.
func (h *Handover[P]) seed(ctx context.Context) error {
	req, st := h.req, state.State{}
	switch {
	case h.beside && h.Move.Version != 0 && h.Move.Step == state.Ask:
	case (h.beside || h.seedFirst) && h.Move.Step == state.Adopt:
		st = *h.fetched
	default:
		return nil
	}
	req.Move, req.Floor = h.Move, nil
	err := h.Owner.Seed(ctx, req, st)
	switch {
	case err == nil && h.Move.Step == state.Adopt:
		h.HandedOver = true
		h.setStep(state.Ask, nil, nil)
	case errors.Is(err, backend.ErrUnsupported) && !h.beside && !h.change:
		// The take carries both floors. Without some refunds a key has less left than it could, never more.
		st.Join(req.Policy, h.sealedAt, h.floor)
		h.seedFirst = false
		h.setStep(state.Adopt, &st, nil)
		return nil
	}
	return err
}

// fetch seals the previous places, and makes what they held the floor. If the key has moved on, the request follows it.
func (h *Handover[P]) fetch(ctx context.Context) error {
	var fetched state.State
	var now state.At
	step, unreachable := state.Adopt, error(nil)
	req := h.req
	req.Move, req.Floor = h.Move, nil
	req.Move.Step = state.Ask
	for i, p := range h.Previous {
		part, cancel := share(ctx, len(h.Previous)-i)
		sealed, err := p.Seal(part, req)
		cancel()
		switch version := h.redirected(err); {
		case err == nil:
			sealed.State.Unfence(h.kind) // it belongs to the place
			now = state.At{Micros: sealed.Now}
			fetched = state.Merge(fetched, sealed.State, now)
		case version > 0:
			return h.redirect(ctx, p, version)
		case ctx.Err() != nil || !h.mover.Unreachable(err):
			return err
		default:
			step, unreachable = state.WithoutFloor, errors.Join(unreachable, err)
		}
	}
	if h.floor != nil && step == state.WithoutFloor {
		fetched.Join(h.req.Policy, now, h.floor) // other limits are stored only if a place held them
	}
	h.sealedAt = now
	h.setStep(step, &fetched, unreachable)
	return nil
}

// redirected is the version under which this mover has moved the key away, or 0. The caller follows keys that another mover has
// moved.
func (h *Handover[P]) redirected(err error) int64 {
	if moved, ok := errors.AsType[*state.MovedError](err); ok && moved.Mover == h.kind {
		return moved.Version
	}
	return 0
}

func (h *Handover[P]) redirect(ctx context.Context, from P, version int64) error {
	route, err := h.mover.Redirect(ctx, from, version)
	if err == nil {
		h.follow(route)
	}
	return err
}

// Load is what the owner knows of the key, joined with what previous places know unless the key was handed over. Counts that
// those had lost by then are missing in either case. A key that has left the owner is followed, as far as its topology is known.
func (h *Handover[P]) Load(ctx context.Context) (backend.Snapshot, error) {
	loaded, err := h.Owner.Load(ctx, h.req)
	if err != nil {
		return backend.Snapshot{}, err
	}
	now := state.At{Micros: loaded.Now}
	followed, lost := h.followed(ctx, h.Owner, &loaded)
	if followed {
		return h.Load(ctx)
	}
	missing := errors.Join(h.Err, lost)
	if adopted, sealed := loaded.State.Fence(h.kind, now); sealed > adopted || adopted < h.Move.Version {
		for i, p := range h.Previous {
			part, cancel := share(ctx, len(h.Previous)-i)
			there, err := p.Load(part, h.req)
			cancel()
			if err != nil {
				missing = errors.Join(missing, err)
				continue
			}
			followed, lost := h.followed(ctx, p, &there)
			if followed {
				return h.Load(ctx)
			}
			missing = errors.Join(missing, lost)
			loaded.State = state.Merge(loaded.State, there.State, now)
			loaded.Lacks = errors.Join(loaded.Lacks, there.Lacks)
			if there.Source == backend.Replica {
				loaded.Source = backend.Replica
			}
		}
		if missing != nil {
			loaded.Lacks = errors.Join(backend.ErrNotHandedOver, missing, loaded.Lacks)
		}
	} else {
		loaded.Lacks = errors.Join(loaded.Lacks, h.lost())
	}
	loaded.State.Unfence(h.kind)
	return loaded, nil
}

// followed takes the route to where a key has left to, if a snapshot says that it has left a place under a version that the route
// doesn't know. The error says why it can't. A migration has no place beside the two that its routes have.
func (h *Handover[P]) followed(ctx context.Context, from P, snapshot *backend.Snapshot) (bool, error) {
	moved := snapshot.Moved()
	version := h.redirected(moved)
	if h.kind != state.Topology || version <= h.Move.Version {
		return false, nil
	}
	if err := h.redirect(ctx, from, version); err != nil {
		return false, errors.Join(moved, err)
	}
	return true, nil
}

// share returns a context for the first of several places. Each gets an equal part of the time that is left, and so does the
// request after them.
func share(ctx context.Context, places int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(places+1))
}
