package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress tells on stderr how far a command has come: a bar on a terminal, else a line now and then.
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

// startProgress calls say now and then, for a while or until it is ended, and shows how much of the time is over.
func startProgress(w io.Writer, lasts time.Duration, say func() string) *progress {
	p := &progress{w: w, terminal: isTerminal(w), stop: make(chan struct{})}
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
		fmt.Fprintf(p.w, "\r\x1b[K%s %3.0f%%  %s", bar(part, progressWidth), 100*part, text)
	} else {
		fmt.Fprintf(p.w, "%3.0f%%  %s\n", 100*part, text)
	}
}

// end leaves no trace on a terminal.
func (p *progress) end() {
	close(p.stop)
	p.running.Wait()
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
