package backend

import (
	"context"

	"github.com/sluice-go/sluice/limit/state"
)

// Peek calls the backend's Peek, or else judges what its Load returns. Without either it fails with [ErrUnsupported].
func Peek(ctx context.Context, b Backend, req Request) (Result, error) {
	if p, ok := b.(Peeker); ok {
		return p.Peek(ctx, req)
	}
	if err := req.CheckTake(ctx); err != nil {
		return Result{}, err
	}
	loaded, err := Load(ctx, b, req)
	if err != nil {
		return Result{}, err
	}
	return loaded.Peek(&req), nil
}

// Refund calls the backend's Refund. Without one it fails with [ErrUnsupported].
func Refund(ctx context.Context, b Backend, req Request, receipt state.Receipt, amount int64) error {
	if r, ok := b.(Refunder); ok {
		return r.Refund(ctx, req, receipt, amount)
	}
	return ErrUnsupported
}

// Charge calls the backend's Charge. Without one it fails with [ErrUnsupported].
func Charge(ctx context.Context, b Backend, req Request, mark state.Mark) (Result, error) {
	if c, ok := b.(Charger); ok {
		return c.Charge(ctx, req, mark)
	}
	return Result{}, ErrUnsupported
}

// Reset calls the backend's Reset. Without one it fails with [ErrUnsupported].
func Reset(ctx context.Context, b Backend, req Request) error {
	if r, ok := b.(Resetter); ok {
		return r.Reset(ctx, req)
	}
	return ErrUnsupported
}

// Grant calls the backend's Grant. Without one it fails with [ErrUnsupported].
func Grant(ctx context.Context, b Backend, req Request, extra int64) error {
	if g, ok := b.(Granter); ok {
		return g.Grant(ctx, req, extra)
	}
	return ErrUnsupported
}

// Ping calls the backend's Ping. A backend without one has no server that could be down: the error is the context's own.
func Ping(ctx context.Context, b Backend) error {
	if p, ok := b.(Pinger); ok {
		return p.Ping(ctx)
	}
	return ctx.Err()
}

// Load calls the backend's Load. Without one it fails with [ErrUnsupported].
func Load(ctx context.Context, b Backend, req Request) (Snapshot, error) {
	if l, ok := b.(Loader); ok {
		return l.Load(ctx, req)
	}
	return Snapshot{}, ErrUnsupported
}

// Seed calls the backend's Seed. Without one it fails with [ErrUnsupported].
func Seed(ctx context.Context, b Backend, req Request, st state.State) error {
	if s, ok := b.(Seeder); ok {
		return s.Seed(ctx, req, st)
	}
	return ErrUnsupported
}

// Seal calls the backend's Seal. Without one it fails with [ErrUnsupported].
func Seal(ctx context.Context, b Backend, req Request) (Snapshot, error) {
	if s, ok := b.(Sealer); ok {
		return s.Seal(ctx, req)
	}
	return Snapshot{}, ErrUnsupported
}

// Doubt calls the backend's Doubt. Without one it is nil.
func Doubt(b Backend, req Request) error {
	if d, ok := b.(Doubter); ok {
		return d.Doubt(req)
	}
	return nil
}
