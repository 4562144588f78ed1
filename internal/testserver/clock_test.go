//go:build linux

package testserver_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
)

func TestClock(t *testing.T) {
	t.Parallel()
	clock := testserver.NewClock(t)
	s := testserver.ClockedRedis(t, clock)
	if err := s.Client().Set(t.Context(), "k", "v", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	check := func(want time.Duration, kept int64) {
		t.Helper()
		now, err := s.Client().Time(t.Context()).Result()
		if off := time.Until(now) - want; err != nil || off < -10*time.Second || off > time.Second {
			t.Errorf("the server's clock is off by %v, want %v, %v", time.Until(now), want, err)
		}
		if n, err := s.Client().Exists(t.Context(), "k").Result(); err != nil || n != kept {
			t.Errorf("%d keys, want %d, %v", n, kept, err)
		}
	}
	check(0, 1)
	clock.Step(t, -2*time.Hour)
	check(-2*time.Hour, 1)
	clock.Step(t, 3*time.Hour+time.Millisecond)
	check(time.Hour, 0) // its own expiry follows
}
