package throttler_test

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

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// A customer is told before requests are denied.
func ExampleConfig_nearLimit() {
	told := make(chan throttler.NearLimitData)
	t, err := throttler.New(throttler.Config{
		Policy:      limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerDay(10)}},
		OnNearLimit: func(data throttler.NearLimitData) { told <- data },
		NearLimit:   0.2,
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
	data := <-told
	fmt.Println(data.Key, data.Policy.Name, data.Status.Remaining, "left of", data.Status.Limit)
	// Output:
	// user:42 api 2 left of 10/24h
}

// nearBook keeps what OnNearLimit is told.
type nearBook struct {
	mu   sync.Mutex // guards told
	told []string
}

func (b *nearBook) note(data throttler.NearLimitData) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = append(b.told, fmt.Sprintf("%s %v %d", data.Key, data.Status.Limit, data.Status.Remaining))
}

// take returns what was told since it was asked last.
func (b *nearBook) take() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	told := b.told
	b.told = nil
	return told
}

func TestNearLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, book := newClock(), &nearBook{}
		b := newSpy(t, now.now)
		th := newThrottler(t, throttler.Config{
			Backend: b, OnNearLimit: book.note, Deny: []string{"bad"}, Allow: []string{"good"},
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
			{"the next minute", func() { now.advance(time.Minute); ask("k", 8) }, []string{"k 8/1m 0"}},
			{"on lists", func() { ask("bad", 1); ask("good", 1) }, nil},
			{"by the failure policy", func() {
				b.failWith(func(string) error { return outage(false) })
				ask("k", 8)
				b.failWith(nil)
			}, nil},
			{"the day, too", func() {
				for range 4 {
					now.advance(time.Minute)
					ask("k", 7)
				}
				ask("k", 1)
			}, []string{"k 8/1m 0", "k 50/24h 5"}},
			{"the day has been told", func() { now.advance(time.Minute); ask("k", 1) }, nil},
		} {
			step.do()
			got := book.take()
			slices.Sort(got)
			slices.Sort(step.want)
			if !slices.Equal(got, step.want) {
				t.Errorf("%s: told %q, want %q", step.name, got, step.want)
			}
		}
	})
}

// A callback that hangs delays nobody, and what it doesn't take in time is told of later.
func TestNearLimitHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn, book := make(chan struct{}), &nearBook{}
		th := newThrottler(t, throttler.Config{
			Policy: one(limit.PerHour(1 << 40)), NearLimit: 1,
			OnNearLimit: func(data throttler.NearLimitData) {
				<-goOn
				book.note(data)
			},
		})
		start := time.Now()
		const keys, room = 1000, 256
		for range 3 {
			for i := range keys {
				allow(t, th, fmt.Sprint(i))
			}
			synctest.Wait()
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("took %s", took)
		}
		close(goOn)
		first := len(book.take())
		if first > room+1 || first < room {
			t.Errorf("%d told, want those that had room", first)
		}
		told := first
		for range 10 {
			for i := range keys {
				allow(t, th, fmt.Sprint(i))
			}
			told += len(book.take())
		}
		if told != keys {
			t.Errorf("%d told in the end, want each of %d once", told, keys)
		}
	})
}

// However many keys are near their limits, none is told of twice.
func TestNearLimitIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := map[string]int{}
		var mu sync.Mutex
		th := newThrottler(t, throttler.Config{
			Policy: one(limit.PerHour(1 << 40)), NearLimit: 1,
			OnNearLimit: func(data throttler.NearLimitData) {
				mu.Lock()
				defer mu.Unlock()
				told[data.Key]++
			},
		})
		const keys, room = 100_000, 65_536
		for _, keys := range []int{keys, 10_000} {
			for i := range keys {
				allow(t, th, fmt.Sprint(i))
				if i%200 == 0 {
					synctest.Wait()
				}
			}
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for key, n := range told {
			if n != 1 {
				t.Fatalf("%s: told of %d times", key, n)
			}
		}
		if len(told) > room || len(told) < room*9/10 {
			t.Errorf("%d keys told of, want about %d", len(told), room)
		}
	})
}

func TestNearLimitAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for _, share := range []float64{0.001, 1} { // far, and near and told
		th := newThrottler(t, throttler.Config{
			Policy: one(limit.PerHour(1 << 40)), NearLimit: share, OnNearLimit: func(throttler.NearLimitData) {},
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
	tell := func(throttler.NearLimitData) {}
	for _, cfg := range []throttler.Config{
		{NearLimit: 0.1}, {NearLimit: -0.1, OnNearLimit: tell}, {NearLimit: 1.1, OnNearLimit: tell},
		{NearLimit: math.NaN(), OnNearLimit: tell},
	} {
		cfg.Policy = one(limit.PerHour(1))
		if _, err := throttler.New(cfg); !slices.Equal(fields(err), []string{"NearLimit"}) {
			t.Errorf("%v: %v", cfg.NearLimit, err)
		}
	}
}
