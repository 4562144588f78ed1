package state_test

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestHalfLife plays random histories: a half-life is that of the scarcest limit in exact arithmetic, and no lease can be held for
// longer than LongestLease.
func TestHalfLife(t *testing.T) {
	second, minute, sliding := limit.PerSecond(50).Aligned(), limit.PerMinute(700), limit.Sliding(300, time.Minute, 5*time.Second)
	for name, limits := range map[string][]limit.Limit{
		"fixed": {minute}, "two": {second, minute}, "sliding": {sliding}, "all windows": {minute, sliding, second, limit.PerHour(5000).Staggered()},
		"bucket": {minute, limit.TokenBucket(10, time.Second, 20)},
	} {
		t.Run(name, func(t *testing.T) {
			p := &limit.Policy{Name: name, Limits: limits}
			random := rand.New(rand.NewPCG(1, uint64(len(limits))))
			var s state.State
			var bounded, denied, unbounded int
			now := int64(1_000_000_000_000)
			for range 5000 {
				now += random.Int64N(400_000)
				if random.IntN(300) == 0 {
					now += 2 * time.Hour.Microseconds()
				}
				at := state.Moment(p, "key", now)
				v := s.Take(p, at, 1+random.Int64N(8))
				if held := v.SpendBefore(now) - now; v.Allowed && held > state.LongestLease(p).Microseconds() {
					t.Fatalf("a lease could be held for %d us, longer than %s", held, state.LongestLease(p))
				}
				got, want := v.HalfLife(now), limit.MaxWindow
				for status := range v.All() {
					l := status.Limit
					used := l.Quota() - status.Remaining
					if l.Algorithm == limit.Bucket {
						want = 0
						break
					}
					if used == 0 {
						unbounded++
						continue
					}
					elapsed := int64(l.Window)
					if l.Algorithm == limit.FixedWindow {
						elapsed += elapsed/8 - status.ResetAt.Sub(time.UnixMicro(now)).Nanoseconds()
					}
					half := new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(status.Remaining))
					half.Quo(half, big.NewInt(2*used))
					if half.IsInt64() {
						want = min(want, time.Duration(half.Int64()))
					}
				}
				if d := got - want; d < -time.Microsecond || d > time.Microsecond {
					t.Fatalf("%+v: %s, want %s", v, got, want)
				}
				switch {
				case got > 0:
					bounded++
				case v.Binding().Remaining == 0:
					denied++
				}
			}
			if name != "bucket" && (bounded == 0 || denied == 0) {
				t.Errorf("%d with a half-life, %d without anything left, %d limits unused", bounded, denied, unbounded)
			}
		})
	}
}
