package lease

import (
	"sync"
	"time"
)

// callSlots bound concurrent calls, of flushes or returns. Most replies come soon. A slow call, as one to a server that hangs,
// moves to one of the slow slots while there is any: calls to other servers don't wait behind it.
type callSlots struct {
	prompt, slow chan struct{}
	busy         sync.WaitGroup
}

const (
	maxFlushes = 256 // two of the largest batches that a server is sent
	maxReturns = 64
	maxSlow    = 1 << 12               // beside them
	slowCall   = 50 * time.Millisecond // a call is slow from then on
)

func newCallSlots(prompt int) *callSlots {
	return &callSlots{prompt: make(chan struct{}, prompt), slow: make(chan struct{}, maxSlow)}
}

// start waits for a slot, and makes a call. It is false, and there is no call, if stop is closed before one is free.
func (s *callSlots) start(stop <-chan struct{}, call func()) bool {
	select {
	case s.prompt <- struct{}{}:
		s.run(call)
		return true
	case <-stop:
		return false
	}
}

// take takes a slot for run, if one is free.
func (s *callSlots) take() bool {
	select {
	case s.prompt <- struct{}{}:
		return true
	default:
		return false
	}
}

// run makes a call in a goroutine of its own, for which a slot was taken. The call returns by the inner backend's timeout.
func (s *callSlots) run(call func()) {
	s.busy.Go(func() {
		var mu sync.Mutex // guards place and over
		place, over := s.prompt, false
		late := time.AfterFunc(slowCall, func() {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return
			}
			select {
			case s.slow <- struct{}{}:
				<-s.prompt
				place = s.slow
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
