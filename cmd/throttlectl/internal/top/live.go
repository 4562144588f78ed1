package top

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

const ctrlC = 3

// page is what is shown on a terminal: the latest view, and what keys have made of it.
type page struct {
	*options
	screen *terminal.Screen
	view   *view                // nil before the first poll
	trends map[string][]float64 // by policy
	first  int                  // line that is shown
}

// onTerminal shows the page until q is pressed, or ctx ends.
func (o *options) onTerminal(ctx context.Context, t *terminal.Terminal, all []*process) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	keys := make(chan byte, 16)
	restore := t.Keys(ctx, func(key byte) {
		if key == 'q' || key == 'Q' || key == ctrlC {
			quit()
			return
		}
		select {
		case keys <- key:
		default: // a person doesn't type that fast
		}
	})
	defer restore()
	return o.live(ctx, &terminal.Screen{W: t.Out, Rows: t.Rows}, all, keys)
}

// live draws a page after each poll and each key until ctx ends.
func (o *options) live(ctx context.Context, s *terminal.Screen, all []*process, keys <-chan byte) error {
	if err := s.Open(); err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := context.WithCancel(ctx)
	views := make(chan *view)
	var polling sync.WaitGroup
	defer polling.Wait()
	defer stop()
	polling.Go(func() {
		tick := time.NewTicker(o.interval)
		defer tick.Stop()
		for {
			v := o.poll(ctx, all)
			select {
			case views <- v:
			case <-ctx.Done():
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	p := &page{options: o, screen: s, trends: make(map[string][]float64)}
	for {
		select {
		case v := <-views:
			p.polled(v)
		case key := <-keys:
			p.pressed(key)
		case <-ctx.Done():
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := p.draw(); err != nil {
			return err
		}
	}
}

// polled takes a new view, and adds its rates to the trends.
func (p *page) polled(v *view) {
	p.view = v
	v.trends = p.trends
	if !v.rates {
		return
	}
	for _, policy := range v.Policies {
		trend := append(p.trends[policy.Policy], policy.latest.decisions())
		p.trends[policy.Policy] = trend[max(0, len(trend)-trendWidth):]
	}
}

func (p *page) pressed(key byte) {
	switch key {
	case 's':
		p.nextOrder(1)
	case 'S':
		p.nextOrder(len(orderNames) - 1)
	case 'j':
		p.first++
	case 'k':
		p.first--
	case ' ':
		p.first += p.lines()
	case 'b':
		p.first -= p.lines()
	}
}

func (p *page) nextOrder(steps int) {
	p.sort = orderNames[(slices.Index(orderNames, p.sort)+steps)%len(orderNames)]
}

// lines is how many lines have room above the hints; 0 if that isn't known.
func (p *page) lines() int { return max(0, p.screen.Rows()-1) }

func (p *page) draw() error {
	if p.view == nil {
		return nil
	}
	p.view.sort(p.sort)
	var text bytes.Buffer
	if err := p.PrintTo(&text, p.view); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	room := p.lines()
	if room == 0 {
		room = len(lines)
	}
	p.first = max(0, min(p.first, len(lines)-room))
	last := min(p.first+room, len(lines))
	hints := "q quit  s S sort: " + p.sort
	if room < len(lines) {
		hints += fmt.Sprintf("  j k space b scroll: lines %d to %d of %d", p.first+1, last, len(lines))
	}
	return p.screen.Draw(strings.Join(lines[p.first:last], "\n"), hints)
}
