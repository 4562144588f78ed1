package featureflag_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

// pusher is a source that tells of its changes as long as it works.
type pusher struct {
	fake

	mu      sync.Mutex // guards what follows
	changed func()
	cut     chan error
	watches []time.Time
	refuse  error
}

var _ featureflag.Watcher = (*pusher)(nil)

func (p *pusher) Watch(ctx context.Context, name string, changed func()) error {
	p.mu.Lock()
	p.watches = append(p.watches, time.Now())
	err, cut := p.refuse, make(chan error, 1)
	p.changed, p.cut = changed, cut
	p.mu.Unlock()
	if err != nil {
		return err
	}
	changed()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-cut:
		return err
	}
}

// set changes the value, and tells.
func (p *pusher) set(v featureflag.Value) {
	p.say(v, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed()
}

// stop ends the watch, and all that follow if there is an error.
func (p *pusher) stop(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = err
	select {
	case p.cut <- err:
	default:
	}
}

// take returns when a watch began, since the last time.
func (p *pusher) take() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	watches := p.watches
	p.watches = nil
	return watches
}

func TestAPushIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &pusher{}
		src.say(value(10, 1), nil)
		f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never})
		expect(t, f, 10, local(1, 0), featureflag.ReasonSource)
		for v := uint64(2); v < 10; v++ {
			src.set(value(float64(v), v))
			expect(t, f, float64(v), local(v, 0), featureflag.ReasonSource)
		}
		if n := len(src.take()); n != 1 {
			t.Errorf("%d watches", n)
		}
	})
}

// A change that comes while a load is under way may have missed it.
func TestAPushDuringALoadLoadsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &slow{}
		src.say(value(10, 1), nil)
		f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never})
		time.Sleep(3 * time.Second) // the load that comes first, and that for the beginning of the watch
		expect(t, f, 10, local(1, 0), featureflag.ReasonSource)
		src.set(value(10, 1))
		time.Sleep(time.Second / 4)
		src.set(value(20, 2))
		time.Sleep(time.Second / 2)
		expect(t, f, 10, local(1, 0), featureflag.ReasonSource)
		time.Sleep(time.Second)
		expect(t, f, 20, local(2, 0), featureflag.ReasonSource)
	})
}

// slow reads at once what it hands over half a second later.
type slow struct{ pusher }

func (s *slow) Load(ctx context.Context, name string) (featureflag.Value, error) {
	v, err := s.pusher.Load(ctx, name)
	time.Sleep(time.Second / 2)
	return v, err
}

func TestAWatchThatEndsBeginsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told notes
		src := &pusher{}
		src.say(value(10, 1), nil)
		f := open(t, featureflag.Config{
			Name: "x", Source: src, Refresh: time.Minute, OnError: told.fail,
		})
		expect(t, f, 10, local(1, 0), featureflag.ReasonSource)

		src.say(value(20, 2), nil) // nobody is told: the watch is about to break
		src.stop(nil)
		time.Sleep(100 * time.Millisecond)
		expect(t, f, 20, local(2, 0), featureflag.ReasonSource)
		if _, errs := told.take(); len(errs) != 1 || errs[0].Error() != `featureflag: flag "x": push: the watch ended` {
			t.Errorf("errors %v", errs)
		}

		src.take()
		src.stop(errDown)
		time.Sleep(time.Hour)
		synctest.Wait()
		watches := src.take()
		if n := len(watches); n < 60 || n > 130 {
			t.Errorf("%d attempts in an hour, want one or two a minute", n)
		}
		if _, errs := told.take(); len(errs) == 0 || !errors.Is(errs[0], errDown) {
			t.Errorf("errors %v", errs)
		}
		pause := time.Duration(0)
		for i := range watches[1:] {
			last := pause
			if pause = watches[i+1].Sub(watches[i]); pause < 50*time.Millisecond || pause > time.Minute || i < 8 && pause < last {
				t.Errorf("pause %d between two attempts: %v after %v", i, pause, last)
			}
		}

		src.stop(nil)
		time.Sleep(time.Minute)
		src.set(value(30, 3))
		expect(t, f, 30, local(3, 0), featureflag.ReasonSource)
		src.take()
		src.stop(nil)
		time.Sleep(100 * time.Millisecond) // the pause began anew
		synctest.Wait()
		if n := len(src.take()); n != 1 {
			t.Errorf("%d watches 100 ms after the break, want 1", n)
		}
	})
}

func TestCloseEndsAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &pusher{refuse: errDown}
		f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never})
		time.Sleep(never / 2)
		start := time.Now()
		f.Close()
		if took := time.Since(start); took != 0 {
			t.Errorf("Close took %v", took)
		}
	})
}
