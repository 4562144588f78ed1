// Package deadline asks contexts about their end.
package deadline

import (
	"context"
	"time"
)

// Ended is ctx.Err(), and also reports a deadline that has passed while the context's timer has not fired yet: the timer
// of a connection with the same deadline may fire first.
func Ended(ctx context.Context) error {
	err := ctx.Err()
	if end, ok := ctx.Deadline(); err == nil && ok && !time.Now().Before(end) {
		err = context.DeadlineExceeded
	}
	return err
}

// Sleep pauses for d, or until ctx ends; it then returns the context's error.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
