package insight_test

import (
	"context"
	"fmt"
	"log"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// A customer is warned before requests are denied.
func ExampleNearLimit() {
	notices := make(chan insight.NearLimitEvent)
	near, err := insight.NewNearLimit(insight.NearLimitConfig{
		Notify: func(n insight.NearLimitEvent) { notices <- n },
		Share:  0.2,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer near.Close()
	t, err := throttler.New(throttler.Config{
		Policy:   limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerDay(10)}},
		Observer: near,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	for range 10 {
		if _, err := t.Allow(context.Background(), "user:42"); err != nil {
			log.Fatal(err)
		}
	}
	n := <-notices
	fmt.Println(n.Key, n.Policy.Name, n.Status.Remaining, "left of", n.Status.Limit)
	// Output:
	// user:42 api 2 left of 10/24h
}

// nearBook keeps notices.
type nearBook struct {
	mu       sync.Mutex // guards notified
	notified []string
}

func (b *nearBook) note(data insight.NearLimitEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notified = append(b.notified, fmt.Sprintf("%s %v %d", data.Key, data.Status.Limit, data.Status.Remaining))
}

// take returns the notices since the last call.
func (b *nearBook) take() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	notified := b.notified
	b.notified = nil
	return notified
}

func TestNearLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, book := throttlertest.NewClock(), &nearBook{}
		b := newSpy(t, now.Now)
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Observer: newNearLimit(t, 0, book.note), Deny: []string{"bad"}, Allow: []string{"good"},
			// The limit with the fewest left is not the one with the smallest share left.
			Policy: limit.Policy{Name: "test", Limits: []limit.Limit{limit.PerMinute(8), limit.PerDay(50)}},
		})
		ask := func(key string, cost int64) {
			t.Helper()
			if _, err := th.AllowN(t.Context(), key, cost); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			name string
			do   func()
			want []string
		}{
			{"far", func() { ask("k", 7) }, nil},
			{"the minute is used up", func() { ask("k", 1) }, []string{"k 8/1m 0"}},
			{"denied", func() { ask("k", 1) }, nil},
			{"another key", func() { ask("other", 8) }, []string{"other 8/1m 0"}},
			{"the next minute", func() { now.Advance(time.Minute); ask("k", 8) }, []string{"k 8/1m 0"}},
			{"on lists", func() { ask("bad", 1); ask("good", 1) }, nil},
			{"by the failure policy", func() {
				b.failWith(errDown)
				ask("k", 8)
				b.failWith(nil)
			}, nil},
			{"the day, too", func() {
				for range 4 {
					now.Advance(time.Minute)
					ask("k", 7)
				}
				ask("k", 1)
			}, []string{"k 8/1m 0", "k 50/24h 5"}},
			{"the day has been notified", func() { now.Advance(time.Minute); ask("k", 1) }, nil},
		} {
			step.do()
			got := book.take()
			slices.Sort(got)
			slices.Sort(step.want)
			if !slices.Equal(got, step.want) {
				t.Errorf("%s: notified %q, want %q", step.name, got, step.want)
			}
		}
	})
}

// A callback that hangs delays no request, and what it doesn't take in time is notified later.
func TestNearLimitHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn, book := make(chan struct{}), &nearBook{}
		th := throttlertesting.New(t, throttler.Config{
			Policy: throttlertesting.One(limit.PerHour(1 << 40)),
			Observer: newNearLimit(t, 1, func(data insight.NearLimitEvent) {
				<-goOn
				book.note(data)
			}),
		})
		start := time.Now()
		const keys, room = 1000, 256
		for range 3 {
			for i := range keys {
				throttlertesting.Allow(t, th, fmt.Sprint(i))
			}
			synctest.Wait()
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("took %s", took)
		}
		close(goOn)
		first := len(book.take())
		if first > room+1 || first < room {
			t.Errorf("%d notified, want those that had room", first)
		}
		notified := first
		for range 10 {
			for i := range keys {
				throttlertesting.Allow(t, th, fmt.Sprint(i))
			}
			notified += len(book.take())
		}
		if notified != keys {
			t.Errorf("%d notified in the end, want each of %d once", notified, keys)
		}
	})
}

// However many keys are near their limits, there is one notice for each.
func TestNearLimitIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		notified := map[string]int{}
		var mu sync.Mutex
		th := throttlertesting.New(t, throttler.Config{
			Policy: throttlertesting.One(limit.PerHour(1 << 40)),
			Observer: newNearLimit(t, 1, func(data insight.NearLimitEvent) {
				mu.Lock()
				defer mu.Unlock()
				notified[data.Key]++
			}),
		})
		const keys, room = 100_000, 65_536
		for _, keys := range []int{keys, 10_000} {
			for i := range keys {
				throttlertesting.Allow(t, th, fmt.Sprint(i))
				if i%200 == 0 {
					synctest.Wait()
				}
			}
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for key, n := range notified {
			if n != 1 {
				t.Fatalf("%s: %d notices", key, n)
			}
		}
		if len(notified) > room || len(notified) < room*9/10 {
			t.Errorf("%d keys notified, want about %d", len(notified), room)
		}
	})
}

func TestNearLimitAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for _, share := range []float64{0.001, 1} { // far, and near and notified
		th := throttlertesting.New(t, throttler.Config{
			Policy: throttlertesting.One(limit.PerHour(1 << 40)), Observer: newNearLimit(t, share, func(insight.NearLimitEvent) {}),
		})
		ctx := t.Context()
		if allocs := testing.AllocsPerRun(1000, func() {
			if _, err := th.Allow(ctx, "k"); err != nil {
				t.Fatal(err)
			}
		}); allocs != 0 {
			t.Errorf("share %v: %v allocations, want none", share, allocs)
		}
	}
}

func TestNearLimitIsChecked(t *testing.T) {
	t.Parallel()
	notify := func(insight.NearLimitEvent) {}
	for _, test := range []struct {
		cfg  insight.NearLimitConfig
		want []string
	}{
		{insight.NearLimitConfig{Share: -0.1, Notify: notify}, []string{"Share"}},
		{insight.NearLimitConfig{Share: 1.1, Notify: notify}, []string{"Share"}},
		{insight.NearLimitConfig{Share: math.NaN(), Notify: notify}, []string{"Share"}},
	} {
		if _, err := insight.NewNearLimit(test.cfg); !slices.Equal(fields(err), test.want) {
			t.Errorf("%v: %v", test.cfg.Share, err)
		}
	}
}
