package throttler

import (
	"context"
	"fmt"
	"strconv"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
)

// PolicySource gives keys their policies, and may change them while a Throttler runs. Package registry has one that follows a
// file. It must be safe for concurrent use.
type PolicySource interface {
	// View returns the current policies. A request calls it once, over all of its keys, and so is answered from one view.
	View() PolicyView
}

// PolicyView is one state of a PolicySource. It never changes, and neither do the policies that it returns. Its methods are
// called for every request: they must be fast and safe for concurrent use.
type PolicyView interface {
	// Default returns the policy that an error about bad input refers to. It must not be nil.
	Default() *limit.Policy

	// Policy returns the policy of a key, which must be valid. An error means that the request gets no verdict.
	Policy(ctx context.Context, key string) (*limit.Policy, error)

	// Listed reports whether the key is on the allow list and on the deny list. A key on both is denied.
	Listed(key string) (allow, deny bool)

	// Shadow returns the shadow of an enforced policy, or nil; see package insight.
	Shadow(p *limit.Policy) *limit.Policy
}

// view returns the view of the PolicySource; nil if there is none.
func (t *Throttler) view() PolicyView {
	if t.cfg.Policies == nil {
		return nil
	}
	return t.cfg.Policies.View()
}

// policy checks a request and returns the policy of its key. Beside an error about bad input it returns the policy known so
// far.
func (t *Throttler) policy(ctx context.Context, view PolicyView, key string, cost int64) (*limit.Policy, error) {
	p := &t.cfg.Policy
	if view != nil {
		p = view.Default()
	}
	if err := t.usable(ctx); err != nil {
		return p, err
	}
	if key == "" {
		return p, &limit.Error{Field: "key", Value: strconv.Quote(key), Bound: "must not be empty"}
	}
	var its *limit.Policy
	if t.cfg.PolicyFor != nil {
		its = t.cfg.PolicyFor(ctx, key)
	}
	if its == nil && view != nil {
		var err error
		if its, err = view.Policy(ctx, key); err != nil {
			return p, fmt.Errorf("throttler: policy of a key: %w", err)
		}
	}
	if its != nil {
		if err := t.validPolicies.check(its); err != nil {
			return p, fmt.Errorf("throttler: policy of a key: %w", err)
		}
		p = its
	}
	return p, p.CheckCost(cost)
}

// usable reports whether the Throttler is open and the context has not ended.
func (t *Throttler) usable(ctx context.Context) error {
	switch {
	case t.closed.Load():
		return ErrClosed
	case ctx == nil:
		return fielderrors.ErrNilContext
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("throttler: %w", err)
	}
	return nil
}
