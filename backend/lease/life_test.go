package lease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// counted is a Memory that counts what it gives back.
type counted struct {
	*memory.Memory
	refunds, refunded atomic.Int64
}

func newCounted(t *testing.T) *counted {
	return &counted{Memory: backendtesting.NewMemory(t, memory.Config{})}
}

func (c *counted) Refund(ctx context.Context, req backend.Request, r state.Receipt, n int64) error {
	c.refunds.Add(1)
	c.refunded.Add(n)
	return c.Memory.Refund(ctx, req, r, n)
}

// toWindow sleeps until a moment of the next minute.
func toWindow(offset time.Duration) {
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + offset)))
}

// heldFor is how long the lease that two takes fetch is held.
func heldFor(t *testing.T, ls *lease.Lease, p *limit.Policy) time.Duration {
	t.Helper()
	takeKey(t, ls, p, 1, true)
	takeKey(t, ls, p, 1, true)
	start := time.Now()
	for ls.Stats().Stranded > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

// TestLeaseLife: a lease is held until half of what remained is gone at the rate so far, for Life at least, and within its window.
func TestLeaseLife(t *testing.T) {
	minute := limit.PerMinute(10_000).Aligned()
	for _, test := range []struct {
		name   string
		limits []limit.Limit
		cfg    lease.Config
		used   int64 // by others
		at     time.Duration
		want   time.Duration
	}{
		{"little is used", []limit.Limit{minute}, lease.Config{}, 100, 20 * time.Second, 40 * time.Second},
		{"a quarter is used", []limit.Limit{minute}, lease.Config{}, 2498, 12500 * time.Millisecond, 28600 * time.Millisecond}, // (12.5 s + 7.5 s) x 7400 / (2 x 2600)
		{"nearly all is used", []limit.Limit{minute}, lease.Config{}, 8998, 12500 * time.Millisecond, 5 * time.Second},
		{"the same, Life: 2 s", []limit.Limit{minute}, lease.Config{Life: 2 * time.Second}, 8998, 12500 * time.Millisecond, 2 * time.Second},
		{"Life beyond the window", []limit.Limit{minute}, lease.Config{Life: time.Hour}, 8998, 12500 * time.Millisecond, 47500 * time.Millisecond},
		{"Steady", []limit.Limit{minute}, lease.Config{Steady: true}, 100, 20 * time.Second, 5 * time.Second},
		{"the scarcest of two", []limit.Limit{minute, limit.PerHour(1_000_000)}, lease.Config{}, 2498, 12500 * time.Millisecond, 28600 * time.Millisecond},
		{"the shortest of two", []limit.Limit{limit.Fixed(10_000, 15*time.Second).Aligned(), limit.PerHour(1_000_000)}, lease.Config{}, 100, 20 * time.Second, 10 * time.Second},
		{"a sub-bucket", []limit.Limit{limit.Sliding(10_000, time.Minute, 10*time.Second)}, lease.Config{}, 100, 21 * time.Second, 9 * time.Second},
		{"a bucket", []limit.Limit{limit.TokenBucket(10_000, time.Minute, 10_000)}, lease.Config{}, 100, 20 * time.Second, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, p := newCounted(t), &limit.Policy{Limits: test.limits}
				test.cfg.Batch, test.cfg.Processes = 100, 1
				ls := backendtesting.NewLease(t, inner, test.cfg)
				toWindow(0)
				backendtesting.MustTake(t, inner.Memory, backend.Request{Key: "key", Policy: p, Cost: test.used})
				time.Sleep(test.at)
				if got := heldFor(t, ls, p); got < test.want-test.want/50 || got > test.want+test.want/50 {
					t.Errorf("held for %s, want %s", got, test.want)
				}
			})
		})
	}
}

// TestHotKeys: a key is leased if it was last used less than half of the life that a lease could have ago.
func TestHotKeys(t *testing.T) {
	minute := limit.PerMinute(10_000).Aligned()
	for _, test := range []struct {
		name  string
		limit limit.Limit
		cfg   lease.Config
		used  int64
		half  time.Duration
	}{
		{"plenty", minute, lease.Config{}, 10, 30 * time.Second},
		{"a quarter is used", minute, lease.Config{}, 2499, 7500 * time.Millisecond}, // half of (2.5 s + 7.5 s) x 7500 / (2 x 2500)
		{"scarce", minute, lease.Config{}, 8999, 2500 * time.Millisecond},
		{"Steady", minute, lease.Config{Steady: true}, 10, 2500 * time.Millisecond},
		{"a short window", limit.PerSecond(10_000).Aligned(), lease.Config{}, 10, 500 * time.Millisecond},
		{"a bucket", limit.TokenBucket(10_000, time.Minute, 10_000), lease.Config{}, 10, 500 * time.Millisecond},
	} {
		for idle, leased := range map[time.Duration]int64{test.half - time.Millisecond: 1, test.half: 0} {
			t.Run(test.name+", idle for "+idle.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner, p := newCounted(t), &limit.Policy{Limits: []limit.Limit{test.limit}}
					test.cfg.Batch, test.cfg.Processes = 100, 1
					ls := backendtesting.NewLease(t, inner, test.cfg)
					toWindow(0)
					backendtesting.MustTake(t, inner.Memory, backend.Request{Key: "key", Policy: p, Cost: test.used})
					time.Sleep(2500 * time.Millisecond)
					takeKey(t, ls, p, 1, true)
					time.Sleep(idle)
					takeKey(t, ls, p, 1, true)
					if s := ls.Stats(); s.Fetches != leased {
						t.Errorf("%d fetches, want %d: %+v", s.Fetches, leased, s)
					}
				})
			})
		}
	}
}

// TestLastMoments: what would be returned in the last moments of its window is not, except on Close; and no process makes a second
// batch unavailable in them.
func TestLastMoments(t *testing.T) {
	const batch = 100
	minute, second := limit.PerMinute(10_000).Aligned(), limit.PerSecond(10_000).Aligned()
	for _, test := range []struct {
		name    string
		limits  []limit.Limit
		before  time.Duration // the lease ends that long before the window does; that is noticed up to 25 ms later
		refunds int64
	}{
		{"minute, 290 ms", []limit.Limit{minute}, 290 * time.Millisecond, 1},
		{"minute, 240 ms", []limit.Limit{minute}, 240 * time.Millisecond, 0},
		{"second, 100 ms", []limit.Limit{second}, 100 * time.Millisecond, 1},
		{"second, 60 ms", []limit.Limit{second}, 60 * time.Millisecond, 0},
		{"second of a minute, 60 ms", []limit.Limit{second, minute}, 60 * time.Millisecond, 1},
	} {
		for _, closes := range []bool{false, true} {
			name, want := test.name, test.refunds
			if closes {
				name, want = name+", Close", 1
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner, p := newCounted(t), &limit.Policy{Limits: test.limits}
					life := 200 * time.Millisecond
					ls := backendtesting.NewLease(t, inner, lease.Config{Batch: batch, Steady: true, Processes: 1, Life: life})
					window := test.limits[0].Window
					toWindow(window - test.before - life)
					takeKey(t, ls, p, 1, true)
					takeKey(t, ls, p, 1, true)
					time.Sleep(life - time.Millisecond)
					if closes {
						if err := ls.Close(); err != nil {
							t.Fatal(err)
						}
					} else {
						time.Sleep(life / 8)
						takeKey(t, ls, p, 1, true)
						takeKey(t, ls, p, 1, true)
					}
					synctest.Wait()
					s := ls.Stats()
					if n := inner.refunds.Load(); n != want || s.Returned != inner.refunded.Load() || s.Lost != 0 {
						t.Errorf("%d refunds, want %d: %+v", n, want, s)
					}
					if !closes && test.refunds == 0 && s.Fetches != 1 {
						t.Errorf("%d batches while the rest of the first counts", s.Fetches)
					}
					if closes || test.refunds > 0 {
						return
					}
					time.Sleep(time.Until(time.Now().Truncate(window).Add(window)))
					takeKey(t, ls, p, 1, true)
					takeKey(t, ls, p, 1, true)
					if after := ls.Stats(); after.Fetches == s.Fetches {
						t.Errorf("no batch in the next window: %+v", after)
					}
				})
			})
		}
	}
}

// TestRareKeys: batches of a key whose demand varies settle where one lasts a window, and those of a key that has gone quiet
// shrink.
func TestRareKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCounted(t), &limit.Policy{Limits: []limit.Limit{limit.PerMinute(1_000_000).Aligned()}}
		ls := backendtesting.NewLease(t, inner, lease.Config{Processes: 1})
		toWindow(0)
		const minutes = 40
		for i := range minutes {
			start := time.Now()
			for n := range []int{9, 3, 6, 12, 5}[i%5] {
				time.Sleep(time.Until(start.Add(time.Duration(2+4*n) * time.Second)))
				takeKey(t, ls, p, 1, true)
			}
			toWindow(0)
		}
		if s := ls.Stats(); s.Fetches > minutes*3/2 {
			t.Errorf("%d minutes: %+v", minutes, s)
		}
		toWindow(30 * time.Second)
		takeKey(t, ls, p, 1, true)
		takeKey(t, ls, p, 1, true)
		if s := ls.Stats(); s.Stranded > 40 {
			t.Errorf("%+v: the batch has not followed the demand, from 1,000", s)
		}
	})
}

// TestFirstBatch: a thousandth of the limit, or a sixteenth of a process's share of it.
func TestFirstBatch(t *testing.T) {
	for processes, want := range map[int]int64{1: 1000, 50: 1000, 100: 625, 3000: 20} {
		synctest.Test(t, func(t *testing.T) {
			p := &limit.Policy{Limits: []limit.Limit{limit.PerMinute(1_000_000)}}
			ls := backendtesting.NewLease(t, newCounted(t), lease.Config{Processes: processes})
			takeKey(t, ls, p, 1, true)
			takeKey(t, ls, p, 1, true)
			if s := ls.Stats(); s.Stranded != want-1 {
				t.Errorf("%d processes: %d leased, want %d", processes, s.Stranded+1, want)
			}
		})
	}
}
