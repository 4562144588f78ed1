// Package workqueue runs work about keys in the background.
package workqueue

import (
	"context"
	"strings"
	"sync"

	"github.com/sluice-go/sluice/internal/keyhash"
)

// Queue hands items to goroutines, which start with the first item. Its items and the bytes of its keys are bounded. Make one
// with New.
type Queue[T any] struct {
	size, workers int
	work          func(ctx context.Context, key string, item T)

	begin   sync.Once
	items   chan queued[T] // nil before the first item
	adding  sync.RWMutex   // guards closed, and is held while an item is added
	closed  bool
	room    keyhash.Room
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type queued[T any] struct {
	key  string
	item T
}

// New makes a queue of at most size items, which the given number of goroutines work on.
func New[T any](size, workers int, work func(ctx context.Context, key string, item T)) *Queue[T] {
	q := &Queue[T]{size: size, workers: workers, work: work}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// Add copies the key. It reports whether there was room; there is none after Close.
func (q *Queue[T]) Add(key string, item T) bool {
	q.start()
	q.adding.RLock()
	defer q.adding.RUnlock()
	if q.closed {
		return false
	}
	if !q.room.Enter(key) {
		return false
	}
	key = strings.Clone(key) // it may be part of something large
	select {
	case q.items <- queued[T]{key, item}:
		return true
	default:
		q.room.Leave(key)
		return false
	}
}

// Full reports whether there was no room for an item, for callers whose items are costly to make.
func (q *Queue[T]) Full() bool {
	q.start()
	return len(q.items) == cap(q.items)
}

func (q *Queue[T]) start() {
	q.begin.Do(func() {
		q.items = make(chan queued[T], q.size)
		for range q.workers {
			q.running.Go(q.run)
		}
	})
}

func (q *Queue[T]) run() {
	for q.ctx.Err() == nil {
		select {
		case <-q.ctx.Done():
		case next := <-q.items:
			q.work(q.ctx, next.key, next.item)
			q.room.Leave(next.key)
		}
	}
}

// Close waits for the items under way, whose context ends, and drops those that wait. It returns how many these are.
func (q *Queue[T]) Close() (dropped int64) {
	q.begin.Do(func() {})
	q.adding.Lock()
	q.closed = true
	q.adding.Unlock()
	q.cancel()
	q.running.Wait()
	for {
		select {
		case item := <-q.items:
			q.room.Leave(item.key)
			dropped++
		default:
			return dropped
		}
	}
}
