package featureflag

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const firstPause = 100 * time.Millisecond

var errEnded = errors.New("the watch ended")

// watch has the source tell of changes, again after every break. The pause between two attempts doubles from 100 ms to
// Refresh, when loads see everything anyway, and loses up to half at random: all processes lose their connections at
// once when a server restarts.
func (f *Flag) watch(ctx context.Context, w Watcher) {
	pause := firstPause
	for {
		var worked atomic.Bool
		err := w.Watch(ctx, f.cfg.Name, func() {
			worked.Store(true)
			signal(f.push)
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errEnded
		}
		select {
		case f.broken <- wrap(err, "flag %q: push: ", f.cfg.Name):
		case <-ctx.Done():
			return
		}
		if worked.Load() {
			pause = firstPause
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, max(f.cfg.Refresh, firstPause))
	}
}
