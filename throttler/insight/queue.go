package insight

import (
	"context"
	"strings"
	"sync"

	"github.com/sluice-go/sluice/internal/keyhash"
)

// queue hands items to goroutines in the background, which begin with the first item. It is bounded in items, and its keys in
// bytes.
type queue[T any] struct {
	size, workers int
	work          func(ctx context.Context, key string, item T)

	begin   sync.Once
	items   chan queued[T] // made by begin
	room    keyhash.Room
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type queued[T any] struct {
	key  string
	item T
}

func (q *queue[T]) init() { q.ctx, q.cancel = context.WithCancel(context.Background()) }

// enqueue copies the key. It reports whether there was room.
func (q *queue[T]) enqueue(key string, item T) bool {
	q.begin.Do(func() {
		q.items = make(chan queued[T], q.size)
		for range q.workers {
			q.running.Go(q.run)
		}
	})
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

func (q *queue[T]) run() {
	for {
		select {
		case <-q.ctx.Done():
			return
		case next := <-q.items:
			q.work(q.ctx, next.key, next.item)
			q.room.Leave(next.key)
		}
	}
}

// close waits for the items under way, and drops those that wait.
func (q *queue[T]) close() {
	q.begin.Do(func() {})
	q.cancel()
	q.running.Wait()
}
