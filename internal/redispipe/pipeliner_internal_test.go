package redispipe

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/callguard"
)

// TestPipelinerGivenUp: a call ends in the moment that its caller gives it up, or its deadline is over. Whoever was first, it
// is told once how, and it is known whether it was sent.
func TestPipelinerGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	reply := errors.New("the reply")
	for name, test := range map[string]struct {
		before func(*evalCall)
		sure   bool
		want   error
	}{
		"waiting":          {func(*evalCall) {}, true, context.Canceled},
		"sent":             {func(e *evalCall) { e.state.Store(sent) }, false, context.Canceled},
		"answered":         {func(e *evalCall) { e.state.Store(sent); e.end("", reply) }, false, reply},
		"overdue":          {(*evalCall).expire, true, context.DeadlineExceeded},
		"overdue on a way": {func(e *evalCall) { e.state.Store(sent); e.expire(); e.end("", reply) }, false, context.DeadlineExceeded},
	} {
		for range 100 { // select chooses at random
			e := newEvalCall(new(sync.Pool), Call{})
			e.share(waiting)
			test.before(e)
			_, err := e.await(ctx)
			if known := callguard.IsUnsent(err); known != test.sure && test.want != reply {
				t.Fatalf("%s: %v, known to be unsent: %t, want %t", name, err, known, test.sure)
			}
			if !errors.Is(err, test.want) && !(errors.Is(err, context.Canceled) && test.want != reply) {
				t.Fatalf("%s: %v, want %v", name, err, test.want)
			}
			e.end("", reply)
			e.expire()
			if len(e.done) > 0 {
				t.Fatalf("%s: told twice", name)
			}
		}
	}
}

// TestPipelinerLoad: a connection takes from the queue what is not over, as much as may go together.
func TestPipelinerLoad(t *testing.T) {
	now := time.Now()
	l, c := new(pipeliner), new(conn)
	for i := range 2 * maxBatch {
		e := newEvalCall(new(sync.Pool), Call{})
		e.deadline = now.Add(time.Duration(i%2) * time.Second)
		e.until = e.deadline
		e.share(waiting)
		l.queue = append(l.queue, e)
	}
	given := l.queue[1]
	given.state.Store(abandoned)
	all := slices.Clone(l.queue)
	l.loadLocked(c, now)
	if len(c.batch) != maxBatch-1 || len(l.queue) != 0 || !c.deadline.Equal(now.Add(time.Second)) {
		t.Errorf("%d in the batch, until %s; %d in the queue", len(c.batch), c.deadline.Sub(now), len(l.queue))
	}
	for i, e := range all {
		want, holders := []uint32{abandoned, sent}[i%2], int32(1+i%2)
		if e == given {
			want, holders = abandoned, 1
		}
		if told := len(e.done) > 0; e.state.Load() != want || e.holders.Load() != holders || told != (i%2 == 0) {
			t.Errorf("call %d: state %d, %d holders, told %t", i, e.state.Load(), e.holders.Load(), told)
		}
	}
	for range maxBatch + 3 {
		e := newEvalCall(new(sync.Pool), Call{})
		e.deadline = now.Add(time.Second)
		e.share(waiting)
		l.queue = append(l.queue, e)
	}
	c.batch = nil
	if l.loadLocked(c, now); len(c.batch) != maxBatch || len(l.queue) != 3 {
		t.Errorf("%d in the batch, %d in the queue", len(c.batch), len(l.queue))
	}
}
