package backend

import (
	"context"
	"errors"
	"testing"
)

// Waiting tells tests how many calls wait for a lane, how many lanes are free, and how many were opened because others
// stalled.
func (r *Redis) Waiting() (queued, free, extra int) {
	r.lanes.mu.Lock()
	defer r.lanes.mu.Unlock()
	return len(r.lanes.queue), r.lanes.free, r.lanes.extra
}

// TestLanesGivenUp: a lane gives a call up in the moment that its caller does. Whoever was first, it was not sent.
func TestLanesGivenUp(t *testing.T) {
	for state, sure := range map[uint32]bool{waiting: true, abandoned: true, sent: false} {
		e := &errand{done: make(chan struct{}, 1)} // its deadline is long over
		e.state.Store(state)
		_, err := new(lanes).await(context.Background(), e)
		if _, known := errors.AsType[unsent](err); known != sure || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("state %d: %v, known to be unsent: %t, want %t", state, err, known, sure)
		}
	}
}
