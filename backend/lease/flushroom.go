package lease

import (
	"sync"
	"time"
)

// flushRoom bounds the concurrent calls of flushes. Most replies come soon. A slow call, as one to a server that hangs, moves to
// a larger room while there is any: charges to other servers don't wait behind it.
type flushRoom struct {
	prompt, slow chan struct{}
	busy         sync.WaitGroup
}

const (
	maxFlushes     = 256                   // two of the largest batches that a server is sent
	maxSlowFlushes = 1 << 12               // beside them
	slowFlush      = 50 * time.Millisecond // a call is slow from then on
)

func newFlushRoom() *flushRoom {
	return &flushRoom{prompt: make(chan struct{}, maxFlushes), slow: make(chan struct{}, maxSlowFlushes)}
}

// start waits for room, and makes a call in a goroutine of its own. The call returns by the inner backend's timeout.
func (r *flushRoom) start(call func()) {
	r.prompt <- struct{}{}
	r.busy.Go(func() {
		var mu sync.Mutex // guards place and over
		place, over := r.prompt, false
		late := time.AfterFunc(slowFlush, func() {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return
			}
			select {
			case r.slow <- struct{}{}:
				<-r.prompt
				place = r.slow
			default:
			}
		})
		call()
		late.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		<-place
	})
}
