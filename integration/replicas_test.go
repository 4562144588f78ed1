//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// readable waits until the process reads the replica.
func readable(t *testing.T, s *sluice, replica string, want bool) {
	t.Helper()
	await(t, fmt.Sprintf("a replica is read: %t", want), func() bool {
		for _, n := range s.router.Nodes() {
			if n.Node == replica {
				return n.Readable == want
			}
		}
		return false
	})
}

// peek asks for what a look says, and who says it.
func peek(t *testing.T, s *sluice, key string) throttler.Decision {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := s.Peek(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestStaleReplica lets a process peek at a replica that has stopped following its primary, and that the process still takes
// for healthy: it checks only once a minute, and when a call is late. Another process makes the charges, and calls come last.
func TestStaleReplica(t *testing.T) {
	t.Parallel()
	const known = 50
	l := limit.PerHour(100)
	primary := startRedis(t)
	replica := startReplica(t, primary)
	group := router.Group{Name: "a", Primary: primary.addr}
	writer := ours(t, 1, setup{
		groups: []router.Group{group}, policy: one(l), failure: throttler.FailClosed, router: router.Config{Backend: patient},
	}).unhurried()
	full, half := "full", "half"
	writer.take(int(l.Max), full)
	writer.take(known, half)
	awaitSync(t, replica, primary)

	const maxLag = 10 * time.Second
	group.Replicas = []string{replica.addr}
	c := ours(t, 1, setup{
		groups: []router.Group{group}, policy: one(l), failure: throttler.FailClosed,
		router: router.Config{Heartbeat: time.Minute, MaxLag: maxLag, Backend: patient},
	}).unhurried()
	s := c.sluiceOf(0)
	readable(t, s, replica.addr, true)
	replica.cutOff(t)
	writer.take(int(l.Max-known), half)
	if n := writer.admitted.Load(); n != 2*l.Max {
		t.Fatalf("%d admitted, want %d", n, 2*l.Max)
	}
	misled := 0 // how often the replica would have admitted
	for range 20 {
		if d := peek(t, s, half); d.Source == throttler.Replica && d.Allowed {
			misled++
			if d.Guarantee == throttler.Exact {
				t.Error("what a replica allows is called exact")
			}
		}
	}
	if misled == 0 {
		t.Error("the replica is not stale: the test shows nothing")
	}
	primary.pause()
	if d := peek(t, s, full); d.Allowed || d.Source != throttler.Replica {
		t.Errorf("a full key without a primary: %v by %v", d.Allowed, d.Source)
	}
	primary.resume()
	for range 20 {
		_, _ = c.call(0, half)
	}
	readable(t, s, replica.addr, false)
	if d := peek(t, s, half); d.Allowed || d.Source != throttler.Primary {
		t.Errorf("past MaxLag: %v by %v", d.Allowed, d.Source)
	}
	shown := of(c, c.admitted.Load())
	shown.note = fmt.Sprintf("the replica alone would have admitted %d of 20", misled)
	report(t, "stale-replica", result{sluice: shown})
}

// TestWindowOver ends a window by a clock of the test's own, so that both servers hold what is over.
func TestWindowOver(t *testing.T) {
	t.Parallel()
	l := limit.PerMinute(5)
	primary := startRedis(t)
	replica := startReplica(t, primary)
	for _, s := range []*server{primary, replica} {
		command(t, s, "DEBUG", "SET-ACTIVE-EXPIRE", "0")
	}
	var now atomic.Int64
	now.Store(time.Now().UnixMicro())
	c := ours(t, 1, setup{
		groups:  []router.Group{{Name: "a", Primary: primary.addr, Replicas: []string{replica.addr}}},
		failure: throttler.FailClosed, policy: one(l),
		router: router.Config{Backend: redisbackend.Config{
			Now: func() time.Time { return time.UnixMicro(now.Load()) }, Timeout: patient.Timeout,
		}},
	}).unhurried()
	s := c.sluiceOf(0)
	readable(t, s, replica.addr, true)
	var reset time.Time
	for range 3 { // windows
		for range 2 * l.Max {
			d, err := c.decide(0, "k")
			if err != nil {
				t.Fatal(err)
			}
			reset = d.ResetAt
		}
		awaitSync(t, replica, primary)
		now.Store(reset.Add(-time.Millisecond).UnixMicro())
		if d := peek(t, s, "k"); d.Allowed || d.Source != throttler.Replica || !d.ResetAt.Equal(reset) {
			t.Errorf("just before the end: %v by %v, reset %v, want %v", d.Allowed, d.Source, d.ResetAt, reset)
		}
		now.Store(reset.UnixMicro())
		if d := peek(t, s, "k"); !d.Allowed || d.Source != throttler.Replica || d.Remaining != l.Max {
			t.Errorf("at the end: %v by %v, %d left", d.Allowed, d.Source, d.Remaining)
		}
		if n := replica.client.DBSize(t.Context()).Val(); n != 2 { // with the marker
			t.Errorf("the replica holds %d keys: the test shows nothing", n)
		}
	}
	shown := of(c, c.admitted.Load()-3*l.Max)
	shown.note = fmt.Sprintf("%d admitted in 3 windows of 5", c.admitted.Load())
	report(t, "window-over", result{sluice: shown})
}
