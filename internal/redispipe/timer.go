package redispipe

import "time"

// deadlineTimer is one timer for all calls that wait. It ends those whose deadlines pass, and opens a connection if one is
// wanted for too long. Both are rare, so it is rarely set: it fires once in a while and then looks when to fire next. A
// timer for each caller took 7 % of the client's time.
type deadlineTimer struct {
	timer *time.Timer
	next  time.Time // when it fires; zero if it doesn't
}

// stallAfter is how long a call waits for a connection before another one is opened.
const stallAfter = 10 * time.Millisecond

// watchLocked makes the timer fire at the latest at a moment.
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

// sweep ends overdue calls, and opens connections for calls that have waited too long.
func (l *pipeliner) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	l.next = time.Time{}
	for _, c := range l.all {
		for _, e := range c.batch {
			l.checkLocked(e, now)
		}
	}
	for _, e := range l.queue {
		l.checkLocked(e, now)
	}
	l.purgeLocked()
	for waits := len(l.queue); waits > 0 && len(l.spare) > 0; waits -= maxBatch {
		if due := l.queue[0].since.Add(stallAfter); now.Before(due) {
			l.watchLocked(due)
			break
		}
		last := len(l.spare) - 1
		c := l.spare[last]
		l.spare = l.spare[:last]
		l.extra++
		l.serving.Go(func() { l.serve(c) })
	}
}

func (l *pipeliner) checkLocked(e *evalCall, now time.Time) {
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
