package lease

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit/state"
)

// Refund implements [backend.Refunder].
func (l *Lease) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if err := l.checkOpen(req.Check(ctx)); err != nil {
		return err
	}
	if _, ok := l.inner.(backend.Refunder); !ok {
		return backend.ErrUnsupported
	}
	if amount = receipt.Refundable(amount); amount < 1 {
		return nil
	}
	s, hash, name := l.shardOf(&req)
	amount, err := l.putBack(ctx, s, hash, name, &receipt, amount)
	if amount == 0 || err != nil {
		return err
	}
	err = backend.Refund(ctx, l.inner, req, receipt, amount)
	l.recheck(s, hash, name, err)
	return err
}

// putBack gives a refund to the current batch, or takes it from what is owed, and returns the rest, which is the server's. What
// is not charged yet is awaited.
func (l *Lease) putBack(ctx context.Context, s *shard, hash uint64, name *backend.Request, receipt *state.Receipt, amount int64) (rest int64, err error) {
	for settled := false; ; settled = true {
		s.mu.Lock()
		c := s.cells.Find(hash, name.Policy.Name, name.Key)
		switch {
		case c == nil:
			s.mu.Unlock()
			return amount, nil
		case c.Value.putBackLocked(receipt, amount, l.clock()):
			s.mu.Unlock()
			return 0, nil
		case c.Value.debt == nil:
			s.mu.Unlock()
			return amount, nil
		}
		rest, wait := c.Value.debt.forgiveLocked(receipt, amount, settled)
		s.mu.Unlock()
		if !wait {
			return rest, nil
		}
		if charged, err := l.chargeNow(ctx, s, c); err != nil {
			return amount, err
		} else if !charged {
			return amount, errNotCharged
		}
	}
}

// errNotCharged is the error of a refund of what could not be charged yet.
var errNotCharged = &backend.Error{Op: "refund", Kind: backend.Unavailable, Err: errors.New("the charge was not executed yet")}

// Reset implements [backend.Resetter]; it fails with [backend.ErrUnsupported] if the inner backend can't reset. It
// drops this process's lease on the key.
func (l *Lease) Reset(ctx context.Context, req backend.Request) error {
	if err := l.checkOpen(req.Check(ctx)); err != nil {
		return err
	}
	if _, ok := l.inner.(backend.Resetter); !ok { // before the lease ends
		return backend.ErrUnsupported
	}
	s, hash, name := l.shardOf(&req)
	c := l.dropLease(s, hash, name, false)
	if _, err := l.chargeNow(ctx, s, c); err != nil { // what was admitted before the reset is part of it, unless the charge is refused
		return err
	}
	err := backend.Reset(ctx, l.inner, req)
	l.dropLease(s, hash, name, err == nil) // what was fetched meanwhile may be part of it, too
	l.recheck(s, hash, name, err)
	return err
}

// dropLease ends the lease on a key, and any fetch under way. With reset it forgets the counts, too, which are no longer true. It
// returns the key's cell, or nil.
func (l *Lease) dropLease(s *shard, hash uint64, name *backend.Request, reset bool) *hashtable.Cell[view] {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cells.Find(hash, name.Policy.Name, name.Key)
	if c != nil {
		s.endAllLocked(c, l.clock())
		c.Value.fetch = nil // its batch is returned
		if reset {
			c.Value.state = state.State{}
		}
	}
	return c
}

// Grant implements [backend.Granter]; it fails with [backend.ErrUnsupported] if the inner backend can't grant. Other processes
// may deny for Config.Recheck more.
func (l *Lease) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := l.checkOpen(req.CheckGrant(ctx, extra)); err != nil {
		return err
	}
	if _, ok := l.inner.(backend.Granter); !ok {
		return backend.ErrUnsupported
	}
	s, hash, name := l.shardOf(&req)
	s.mu.Lock()
	c := s.cells.Find(hash, name.Policy.Name, name.Key)
	s.mu.Unlock()
	if _, err := l.chargeNow(ctx, s, c); err != nil { // what was admitted before the grant is part of it, unless the charge is refused
		return err
	}
	err := backend.Grant(ctx, l.inner, req, extra)
	l.recheck(s, hash, name, err)
	return err
}

// recheck lets requests be forwarded although the view denies them, until a reply comes: a refund or a reset, which may have
// succeeded as err tells, has made room, or a seed has brought a later window. The view's own state changes only by merging
// replies: one merged since may already include the refund.
func (l *Lease) recheck(s *shard, hash uint64, name *backend.Request, err error) {
	if err != nil && outcome.NothingExecuted(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil {
		c.Value.recheck, c.Value.resetMicros, c.Value.doubt, c.Value.doubtedAt = 0, 0, true, l.clock()
	}
}
