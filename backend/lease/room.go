package lease

import (
	"sync"
	"time"
)

// room bounds concurrent calls, of flushes or returns. Most replies come soon. A slow call, as one to a server that hangs, moves to
// a larger room while there is any: calls to other servers don't wait behind it.
type room struct {
	prompt, slow chan struct{}
	busy         sync.WaitGroup
}

const (
	maxFlushes = 256 // two of the largest batches that a server is sent
	maxReturns = 64
	maxSlow    = 1 << 12               // beside them
	slowCall   = 50 * time.Millisecond // a call is slow from then on
)

func newRoom(prompt int) *room {
	return &room{prompt: make(chan struct{}, prompt), slow: make(chan struct{}, maxSlow)}
}

// start waits for room, and makes a call in a goroutine of its own. The call returns by the inner backend's timeout. It is false,
// and there is no call, if stop is closed before there is room.
func (r *room) start(stop <-chan struct{}, call func()) bool {
	select {
	case r.prompt <- struct{}{}:
	case <-stop:
		return false
	}
	r.busy.Go(func() {
		var mu sync.Mutex // guards place and over
		place, over := r.prompt, false
		late := time.AfterFunc(slowCall, func() {
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
	return true
}
