package backend

import "time"

// sweeper is one timer for all who wait. Each of them returns by its own deadline, and if it got no lane for a while,
// another one is opened; but hardly ever does that happen, and so hardly ever is the timer set: it fires once in a while,
// and looks when it has to fire next. A timer for each caller took 7 % of the client's time.
type sweeper struct {
	timer *time.Timer
	next  time.Time // when it fires; zero if it doesn't
}

// stalled is how long to wait for a lane.
const stalled = 10 * time.Millisecond

// watchLocked has the sweeper look at the latest at a moment.
func (l *lanes) watchLocked(at time.Time) {
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

func (l *lanes) unwatchLocked() {
	if l.next = (time.Time{}); l.timer != nil {
		l.timer.Stop()
	}
}

// sweep ends what is overdue, and opens lanes for those who have waited for too long.
func (l *lanes) sweep() {
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
	for waits := len(l.queue); waits > 0 && len(l.spare) > 0; waits -= mostTogether {
		if due := l.queue[0].since.Add(stalled); now.Before(due) {
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

func (l *lanes) lookLocked(e *errand, now time.Time) {
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
