package terminal

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress shows how far a command is: a bar on a terminal, else a line now and then.
type progress struct {
	w        io.Writer
	terminal bool
	stop     chan struct{}
	running  sync.WaitGroup
}

const (
	redraw        = 200 * time.Millisecond // on a terminal
	progressWidth = 30
	lines         = 10 // elsewhere, and at most one a second
)

// StartProgress shows how much of the time is over, with what say returns, until End.
func StartProgress(w io.Writer, lasts time.Duration, say func() string) *progress {
	p := &progress{w: w, terminal: IsTerminal(w), stop: make(chan struct{})}
	every := max(lasts/lines, time.Second)
	if p.terminal {
		every = redraw
	}
	start := time.Now()
	p.running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.show(float64(time.Since(start))/float64(lasts), say())
			case <-p.stop:
				return
			}
		}
	})
	return p
}

func (p *progress) show(part float64, text string) {
	part = min(part, 1)
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s %3.0f%%  %s", Bar(part, progressWidth), 100*part, text)
	} else {
		fmt.Fprintf(p.w, "%3.0f%%  %s\n", 100*part, text)
	}
}

// End stops it, and leaves no trace on a terminal.
func (p *progress) End() {
	close(p.stop)
	p.running.Wait()
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
