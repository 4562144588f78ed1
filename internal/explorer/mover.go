package explorer

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/limit/state"
)

// mover brings a request to where its key is.
type mover interface {
	Take(ctx context.Context, req backend.Request) (backend.Result, error)
	Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error
}

func (p *process) mover() mover {
	if p.world.Places == 2 {
		return p.dual()
	}
	return router{p}
}

// place is one of the places as a process sees it.
type place struct {
	p *process
	i int
}

func (a place) Take(_ context.Context, req backend.Request) (backend.Result, error) {
	r := a.p.ask(message{kind: 't', place: a.i, req: req})
	return r.result, r.err
}

func (a place) Refund(_ context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return a.p.ask(message{kind: 'r', place: a.i, req: req, receipt: receipt, amount: amount}).err
}

func (a place) Seal(_ context.Context, req backend.Request) (backend.Snapshot, error) {
	r := a.p.ask(message{kind: 's', place: a.i, req: req})
	return r.snapshot, r.err
}

func (a place) Seed(_ context.Context, req backend.Request, st state.State) error {
	return a.p.ask(message{kind: 'd', place: a.i, req: req, floor: st}).err
}

func (a place) Load(context.Context, backend.Request) (backend.Snapshot, error) {
	return backend.Snapshot{}, backend.ErrUnsupported
}

func (a place) Close() error { return nil }

// dual is a dual.Dual of a process that has just started: what it remembers of flags changes nothing here.
func (p *process) dual() mover {
	r := p.request
	d, err := dual.New(dual.Config{
		Old: place{p, 0}, New: place{p, 1}, CarryOver: true, Settle: settle,
		Decide: func(string) (bool, uint64) { return r.place == 1, uint64(r.version) },
	})
	if err != nil {
		panic(err)
	}
	return d
}

// router is what package router does with a key that moves. Each version is the epoch of a topology that all know.
type router struct{ p *process }

const maxTurns = 8

var errRestless = errors.New("the key moved again at every turn")

func (r router) Take(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	step, err := r.do(ctx, req, func(p place, req backend.Request) (err error) {
		result, err = p.Take(ctx, req)
		return err
	})
	if step == state.WithoutFloor {
		result.Guarantee = backend.Bounded
	}
	return result, err
}

// Refund seeds a key that is to be adopted first: a refund has no room for a floor.
func (r router) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	_, err := r.do(ctx, req, func(p place, req backend.Request) error {
		if req.Move.Step == state.Adopt {
			if err := p.Seed(ctx, req, *req.Floor); err != nil {
				return err
			}
			req.Move.Step, req.Floor = state.Ask, nil
		}
		return p.Refund(ctx, req, receipt, amount)
	})
	return err
}

// do makes a call where the key is: it asks the owner, seals the previous owners if the owner wants their counts, and follows
// the key where it has gone.
func (r router) do(ctx context.Context, req backend.Request, call func(place, backend.Request) error) (state.Step, error) {
	version, step := r.p.request.version, state.Ask
	var known *state.State
	for range maxTurns {
		req.Move, req.Floor = state.Move{}, known
		if version > 1 {
			req.Move = state.Move{Mover: state.Topology, Version: int64(version), Step: step, TTL: settle}
		}
		err := call(place{r.p, r.owner(version)}, req)
		moved, elsewhere := errors.AsType[*state.MovedError](err)
		switch {
		case errors.Is(err, state.ErrFloorWanted):
			known, step, moved, err = r.seal(ctx, req, version)
			if err != nil {
				return step, err
			}
			if moved == nil {
				continue
			}
			fallthrough
		case elsewhere:
			version, step, known = max(version, int(moved.Version)), state.Ask, nil
		default:
			return step, err
		}
	}
	return step, errRestless
}

func (r router) owner(version int) int { return (version - 1) % r.p.world.Places }

// seal seals the key at all places that it may come from, and joins what they held.
func (r router) seal(ctx context.Context, req backend.Request, version int) (*state.State, state.Step, *state.MovedError, error) {
	known, step, asked := new(state.State), state.Adopt, make([]bool, r.p.world.Places)
	asked[r.owner(version)] = true
	req.Move.Step, req.Floor = state.Ask, nil
	for v := version - 1; v > 0; v-- {
		if asked[r.owner(v)] {
			continue
		}
		asked[r.owner(v)] = true
		sealed, err := place{r.p, r.owner(v)}.Seal(ctx, req)
		moved, elsewhere := errors.AsType[*state.MovedError](err)
		switch {
		case elsewhere:
			return nil, state.Ask, moved, nil
		case errors.Is(err, errCrashed):
			return nil, state.Ask, nil, err
		case err != nil:
			step = state.WithoutFloor
		default:
			merged := state.Merge(*known, sealed.State, state.At{Micros: sealed.Now})
			known = &merged
		}
	}
	return known, step, nil, nil
}
