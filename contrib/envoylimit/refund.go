package envoylimit

import (
	"context"

	"github.com/sluice-go/sluice/throttler"
)

// giveBack gives back hits of what is charged to a slot's key, by any process. What is left then is only shown: a request whose
// hits were given back must not fail for it, and be sent again.
func (sl *slot) giveBack(ctx context.Context, t *throttler.Throttler) error {
	if sl.hits == 0 {
		return sl.peek(ctx, t)
	}
	if err := t.Grant(with(ctx, sl), sl.match.Key, sl.hits); err != nil {
		return err
	}
	_ = sl.peek(ctx, t)
	return nil
}
