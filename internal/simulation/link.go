package simulation

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/limit/state"
)

// link is how one instance reaches one server: a client without heartbeats and without a second try.
type link struct {
	w       *world
	from    *instance
	to      *node
	replica bool
	name    string
	lag     time.Duration // by which the instance's idea of the server's time is behind: less than a round trip
}

var (
	_ backend.Backend   = (*link)(nil)
	_ backend.Peeker    = (*link)(nil)
	_ backend.Refunder  = (*link)(nil)
	_ backend.Resetter  = (*link)(nil)
	_ backend.Loader    = (*link)(nil)
	_ backend.Seeder    = (*link)(nil)
	_ backend.Sealer    = (*link)(nil)
	_ control.Publisher = (*link)(nil)
	_ control.Clock     = (*link)(nil)
)

const (
	shortestWay = time.Millisecond
	patience    = 120 * time.Millisecond // of the client with a server
)

var (
	errRefused = errors.New("connection refused")
	errSilence = errors.New("no reply in time")
)

// call sends a request, which is carried out there unless it is lost, and waits for the reply. The caller may read what
// it left behind only if there is no error, for it may be carried out later than this returns.
func (l *link) call(ctx context.Context, op, key string, mark uint64, do func(at state.At, heard bool)) error {
	sent := time.Now()
	random := dice(l.w.seed, "message", l.from.id, callOf(ctx), l.name, op, key, mark, sent.UnixNano())
	charges := op == "take" || op == "refund" || op == "reset"
	fail := func(kind backend.Kind, may bool, err error) error {
		return &backend.Error{Op: op, Node: l.name, Kind: kind, MayHaveCharged: may && charges, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(backend.Interrupted, false, err)
	}
	if l.apart(sent) && chance(random, 0.5) {
		select {
		case <-time.After(span(random, 0, shortestWay)):
			return fail(backend.Unavailable, false, errRefused)
		case <-ctx.Done():
			return fail(backend.Interrupted, false, ctx.Err())
		}
	}
	at := state.At{Micros: l.NowMicros()}
	reply := make(chan struct{})
	deliveries := 1
	if l.w.Plant == RefundTwice && op == "refund" || l.w.Plant == TakeTwice && op == "take" && chance(random, 0.2) {
		deliveries = 2
	}
	for i := range deliveries {
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		l.w.running.Go(func() {
			if l.travel(random, l.w.LoseRequests); l.apart(time.Now()) && !l.from.dead.Load() || chance(random, l.w.LoseRequests) {
				return
			}
			for now := time.Now(); l.to.thaws(now) != now; now = time.Now() {
				time.Sleep(time.Until(l.to.thaws(now)) + span(random, 0, time.Millisecond))
			}
			l.w.mu.Lock()
			do(at, i == 0)
			l.w.mu.Unlock()
			l.travel(random, l.w.LoseReplies)
			if chance(random, l.w.LoseReplies) || l.apart(time.Now()) || i > 0 {
				return
			}
			close(reply)
		})
	}
	timeout := time.NewTimer(patience + span(random, 0, time.Millisecond))
	defer timeout.Stop()
	select {
	case <-reply:
		return nil
	case <-ctx.Done():
		return fail(backend.Interrupted, true, ctx.Err())
	case <-timeout.C:
		return fail(backend.Unavailable, true, errSilence)
	}
}

// orRefusal is what a call came to: it looks at the server's answer only where there was one.
func orRefusal(err error, refusal *error) error {
	if err != nil {
		return err
	}
	return *refusal
}

// travel is one way of a message. Where messages get lost some are very late, too.
func (l *link) travel(random *rand.Rand, loses float64) {
	d := span(random, shortestWay, 6*time.Millisecond)
	switch late := random.Float64(); {
	case late < loses/2:
		d += span(random, 0, 1500*time.Millisecond)
	case late < 0.05:
		d += span(random, 0, 45*time.Millisecond)
	}
	time.Sleep(d)
}

// apart reports whether nothing gets through.
func (l *link) apart(now time.Time) bool {
	if l.from.dead.Load() {
		return true
	}
	for _, p := range l.w.partitions {
		if p.slot == l.from.slot && p.group == l.to.group && p.has(now) {
			return true
		}
	}
	return false
}

// NowMicros implements [control.Clock].
func (l *link) NowMicros() int64 { return time.Now().Add(-l.lag).UnixMicro() }

// Take implements [backend.Backend].
func (l *link) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	t := tripOf(ctx)
	knew := l.from.knows(l.to, req.Key)
	var r backend.Result
	var refusal error
	var serial int64
	var life int
	err := l.call(ctx, "take", req.Key, uint64(req.Cost), func(at state.At, heard bool) {
		result, err := l.to.take(req, at, t, knew)
		l.w.note("%s: take %d of %s by %s: allowed %t, %v", l.name, req.Cost, req.Key, l.from.name, result.Allowed, err)
		if heard {
			r, refusal, serial, life = result, err, l.to.serialOf(req.Key), l.to.life
		}
	})
	if err = orRefusal(err, &refusal); err != nil {
		return backend.Result{}, err
	}
	l.from.learned(l.to, req.Key, life, serial)
	return r, nil
}

// Refund implements [backend.Refunder].
func (l *link) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	end, position, _ := receipt.Charge(0)
	return l.change(ctx, "refund", req, fingerprint(end, position, amount), func(s *state.State, at state.At) {
		s.Refund(at, &receipt, amount)
	})
}

// Reset implements [backend.Resetter].
func (l *link) Reset(ctx context.Context, req backend.Request) error {
	return l.change(ctx, "reset", req, 0, func(s *state.State, at state.At) {
		s.Reset(req.Policy, at)
		l.w.book.forgiven(req.Key)
	})
}

func (l *link) change(ctx context.Context, op string, req backend.Request, mark uint64, change func(*state.State, state.At)) error {
	var refusal error
	err := l.call(ctx, op, req.Key, mark, func(at state.At, heard bool) {
		err := l.to.giveBack(req, at, func(s *state.State) { change(s, at) })
		l.w.note("%s: %s of %s by %s: %v", l.name, op, req.Key, l.from.name, err)
		if heard {
			refusal = err
		}
	})
	return orRefusal(err, &refusal)
}

// Load implements [backend.Loader].
func (l *link) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	var snapshot backend.Snapshot
	err := l.call(ctx, "load", req.Key, 0, func(at state.At, _ bool) {
		snapshot = backend.Snapshot{Now: at.Micros, Source: backend.Primary}
		if l.replica {
			l.to.follow()
			snapshot.Source = backend.Replica
			kept := l.to.replica[req.Key].state
			snapshot.State = kept.Clone()
		} else if s := l.to.state[req.Key]; s != nil {
			snapshot.State = s.Clone()
		}
	})
	if err != nil {
		return backend.Snapshot{}, err
	}
	return snapshot, nil
}

// Peek implements [backend.Peeker].
func (l *link) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	snapshot, err := l.Load(ctx, req)
	if err != nil {
		return backend.Result{}, err
	}
	return snapshot.Peek(&req), nil
}

// Seed implements [backend.Seeder].
func (l *link) Seed(ctx context.Context, req backend.Request, st state.State) error {
	var refusal error
	err := l.call(ctx, "seed", req.Key, 0, func(at state.At, _ bool) {
		refusal = l.to.seed(req, at, &st)
		l.w.note("%s: seed of %s by %s: %v", l.name, req.Key, l.from.name, refusal)
	})
	return orRefusal(err, &refusal)
}

// Seal implements [backend.Sealer].
func (l *link) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	var snapshot backend.Snapshot
	var refusal error
	err := l.call(ctx, "seal", req.Key, uint64(req.Move.Version), func(at state.At, _ bool) {
		snapshot, refusal = l.to.seal(req, at)
		l.w.note("%s: seal %d of %s by %s: %v", l.name, req.Move.Version, req.Key, l.from.name, refusal)
	})
	if err = orRefusal(err, &refusal); err != nil {
		return backend.Snapshot{}, err
	}
	return snapshot, nil
}

// Published implements [control.Publisher].
func (l *link) Published(ctx context.Context) (control.Announcement, error) {
	var there control.Announcement
	err := l.call(ctx, "published", "", 0, func(state.At, bool) { there = l.to.published() })
	if err != nil {
		return control.Announcement{}, err
	}
	return there, nil
}

// Publish implements [control.Publisher].
func (l *link) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	var there control.Announcement
	err := l.call(ctx, "publish", "", uint64(n.Version), func(state.At, bool) { there = l.to.publish(n) })
	if err != nil {
		return control.Announcement{}, err
	}
	return there, nil
}

// Close implements [backend.Backend]. The server stays.
func (l *link) Close() error { return nil }
