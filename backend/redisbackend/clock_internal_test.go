package redisbackend

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/testclock"
)

// TestServerClock: the server's time goes on by this process's monotonic clock, and a reading has an age.
func TestServerClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c serverClock
		if _, ok := c.now(); ok {
			t.Error("a clock that was never set is trusted")
		}
		const server = 4_000_000_000_000_000 // far from this host's time
		c.observe(server, time.Now(), false)
		for _, passed := range []time.Duration{0, time.Microsecond, time.Second, clockTrusted + time.Second} {
			begin := time.Now()
			<-time.After(passed)
			if now, ok := c.now(); !ok || now.micros != server+now.age.Microseconds() || now.age < passed || time.Since(begin) != passed {
				t.Errorf("after %s: %d us, age %s, ok %t", passed, now.micros-server, now.age, ok)
			}
		}
		c.observe(server-1_000_000, time.Now(), false) // a server's clock may step back
		if now, ok := c.now(); !ok || now.micros != server-1_000_000 || now.age != 0 {
			t.Errorf("after a step back: %d us, age %s, ok %t", now.micros-server, now.age, ok)
		}
	})
}

// TestServerClockPrefersQuickReplies: one that took long says less than the last one, for a while.
func TestServerClockPrefersQuickReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c serverClock
		hear := func(lag, took time.Duration) (behind time.Duration) { // a server whose clock is this process's
			asked := time.Now()
			<-time.After(took)
			c.observe(time.Now().Add(-lag).UnixMicro(), asked, false)
			now, _ := c.now()
			if got := time.Since(time.UnixMicro(now.micros)); got > now.behind {
				t.Errorf("the server is %s ahead, and may be %s", got, now.behind)
			}
			return time.Since(time.UnixMicro(now.micros))
		}
		for _, test := range []struct {
			after, lag, took, want time.Duration
		}{
			{0, 200 * time.Millisecond, 250 * time.Millisecond, 200 * time.Millisecond}, // the first is all there is
			{0, time.Millisecond, 2 * time.Millisecond, time.Millisecond},
			{time.Second, 200 * time.Millisecond, 250 * time.Millisecond, time.Millisecond},
			{time.Second, 3 * time.Millisecond, 4 * time.Millisecond, 3 * time.Millisecond}, // not much slower
			{clockSlow, 100 * time.Millisecond, 150 * time.Millisecond, 100 * time.Millisecond},
		} {
			<-time.After(test.after)
			if got := hear(test.lag, test.took); got != test.want {
				t.Errorf("a reply that took %s: %s behind, want %s", test.took, got, test.want)
			}
		}
	})
}

// TestServerClockJump: once the wall clock and the monotonic clock disagree on what has passed, neither is believed.
func TestServerClockJump(t *testing.T) {
	for jump, want := range map[time.Duration]bool{
		0: true, clockJump / 2: true, -clockJump / 2: true, 2 * clockJump: false, -2 * clockJump: false, 1000 * time.Hour: false,
	} {
		var c serverClock
		c.observe(1, time.Now(), false)
		c.last.Store(&reading{1, testclock.MonotonicAhead(c.last.Load().at, jump), 0})
		now, ok := c.now()
		if ok != want {
			t.Errorf("a jump of %s: trusted %t, want %t", jump, ok, want)
		}
		if ok && now.behind < jump-time.Millisecond {
			t.Errorf("after a suspend of %s the server may be %s ahead", jump, now.behind)
		}
	}
}

// TestServerClockAfterSleep: a slow reply is better than a reading that is no longer believed.
func TestServerClockAfterSleep(t *testing.T) {
	var c serverClock
	c.last.Store(&reading{1, testclock.MonotonicAhead(time.Now(), 2*clockJump), 0})
	c.observe(5_000_000, time.Now().Add(-time.Second), false)
	if now, ok := c.now(); !ok || now.micros < 5_000_000 {
		t.Errorf("after a slow reply: %d us, ok %t", now.micros, ok)
	}
}

func TestAhead(t *testing.T) {
	asked := time.Now()
	for _, want := range []time.Duration{-time.Hour, 0, 3 * time.Millisecond, 48 * time.Hour} {
		server := asked.Add(20*time.Millisecond + want).Round(0) // a reply of 40 ms, read halfway
		if got := ahead(server, asked, 40*time.Millisecond); got != want {
			t.Errorf("%s ahead, want %s", got, want)
		}
	}
}

// TestClockBorrowed: another server's time counts only where there is none to be trusted, and until there is.
func TestClockBorrowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c serverClock
		const own, others = 1_000_000_000, 5_000_000_000
		start := time.Now()
		want := func(micros int64) {
			t.Helper()
			now, ok := c.now()
			if now.micros -= time.Since(start).Microseconds(); !ok || now.micros != micros {
				t.Errorf("the clock says %d, %t; want %d", now.micros, ok, micros)
			}
		}
		hear := func(micros int64, borrowed bool) {
			c.observe(micros+time.Since(start).Microseconds(), time.Now(), borrowed)
		}
		hear(others, true)
		want(others)
		hear(own, false)
		want(own)
		for range 3 {
			time.Sleep(clockTrusted / 3)
			want(own)
			hear(own, false)
			hear(others, true)
			want(own)
		}
		time.Sleep(clockTrusted - time.Nanosecond)
		hear(others, true)
		want(own)
		time.Sleep(time.Nanosecond)
		hear(others, true)
		want(others)
	})
}
