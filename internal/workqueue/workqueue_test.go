package workqueue_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/workqueue"
)

// TestClose: an item that waits is dropped and counted, and none is added any more.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var run atomic.Int64
		q := workqueue.New(4, 1, func(ctx context.Context, _ string, _ int) {
			run.Add(1)
			<-ctx.Done()
		})
		long := strings.Repeat("k", keyhash.MaxRoom/4)
		for i := range 3 {
			if !q.Add(long, i) {
				t.Fatal("there should be room")
			}
			synctest.Wait() // the first one is under way
		}
		if dropped := q.Close(); dropped != 2 || run.Load() != 1 {
			t.Errorf("%d dropped, %d run, want 2 and 1", dropped, run.Load())
		}
		for range 5 {
			if q.Add(long, 0) || q.Add("short", 0) {
				t.Fatal("an item was added after Close")
			}
		}
		if again := q.Close(); again != 0 {
			t.Errorf("a second Close dropped %d", again)
		}
		unused := workqueue.New(1, 1, func(context.Context, string, int) {})
		if unused.Close() != 0 || unused.Add("k", 0) {
			t.Error("a queue that was closed before its first item takes one")
		}
	})
}

// TestCloseRaces: every item that was added is run or dropped.
func TestCloseRaces(t *testing.T) {
	t.Parallel()
	for range 100 {
		var run, added atomic.Int64
		q := workqueue.New(8, 2, func(context.Context, string, int) { run.Add(1) })
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for i := range 20 {
					if q.Add("k", i) {
						added.Add(1)
					}
				}
			})
		}
		dropped := q.Close()
		all.Wait()
		if added.Load() != run.Load()+dropped {
			t.Fatalf("%d added, %d run, %d dropped", added.Load(), run.Load(), dropped)
		}
	}
}
