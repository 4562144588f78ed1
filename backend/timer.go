package backend

import "time"

// deadlineTimer is one timer for all who wait. Each of them returns by its own deadline, and if it got no lane for a while,
// another one is opened; but hardly ever does that happen, and so hardly ever is the timer set: it fires once in a while,
// and looks when it has to fire next. A timer for each caller took 7 % of the client's time.
type deadlineTimer struct {
	timer *time.Timer
	next  time.Time // when it fires; zero if it doesn't
}

// stalled is how long to wait for a lane.
const stallAfter = 10 * time.Millisecond

// watchLocked has the deadlineTimer look at the latest at a moment.
func (l *pipeliner) watchLocked(at time.Time) {
	if !l.next.IsZero() && !at.Before(l.next) {
		return
	}
	l.next = at
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(at), l.sweep)
	} else {
		l.timer.Reset(time.Until(at))
	}
}

func (l *pipeliner) unwatchLocked() {
	if l.next = (time.Time{}); l.timer != nil {
		l.timer.Stop()
	}
}

// sweep ends what is overdue, and opens lanes for those who have waited for too long.
func (l *pipeliner) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	l.next = time.Time{}
	for _, ln := range l.all {
		for _, e := range ln.batch {
			l.lookLocked(e, now)
		}
	}
	for _, e := range l.queue {
		l.lookLocked(e, now)
	}
	l.purgeLocked()
	for waits := len(l.queue); waits > 0 && len(l.spare) > 0; waits -= maxBatch {
		if due := l.queue[0].since.Add(stallAfter); now.Before(due) {
			l.watchLocked(due)
			break
		}
		last := len(l.spare) - 1
		ln := l.spare[last]
		l.spare = l.spare[:last]
		l.extra++
		l.serving.Go(func() { l.serve(ln) })
	}
}

func (l *pipeliner) lookLocked(e *evalCall, now time.Time) {
	switch {
	case !e.open():
	case now.Before(e.deadline):
		l.watchLocked(e.deadline)
	default:
		e.expire()
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
