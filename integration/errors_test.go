//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestErrorReplies makes real servers refuse, in every way that a group of one primary can, and looks at what a decision
// says, whether the breaker takes the server for dead, and whether an event reaches the operator.
func TestErrorReplies(t *testing.T) {
	t.Parallel()
	var typed, wrong int
	var longest time.Duration
	for _, test := range []struct {
		name    string
		prefix  string // of the reply
		options []string
		kind    backend.Kind
		user    *redis.Options
		cause   func(t *testing.T, s *server) (repair func())
	}{
		{name: "LOADING", prefix: "LOADING", kind: backend.Unavailable,
			options: []string{"--loading-process-events-interval-bytes", "1024"}, cause: loading},
		{name: "BUSY", prefix: "BUSY", kind: backend.Unavailable, options: []string{"--busy-reply-threshold", "1"}, cause: busy},
		{name: "OOM", prefix: "OOM", kind: backend.Unavailable, cause: configure("maxmemory", "1", "0")},
		{name: "READONLY", prefix: "READONLY", kind: backend.Unavailable, cause: func(t *testing.T, s *server) func() {
			s.follow(t, startRedis(t))
			return func() { s.promote(t) }
		}},
		{name: "NOREPLICAS", prefix: "NOREPLICAS", kind: backend.Unavailable, cause: configure("min-replicas-to-write", "1", "0")},
		{name: "MASTERDOWN", prefix: "MASTERDOWN", kind: backend.Unavailable, cause: func(t *testing.T, s *server) func() {
			command(t, s, "CONFIG", "SET", "replica-serve-stale-data", "no")
			s.cutOff(t)
			return func() { s.promote(t) }
		}},
		{name: "max clients", prefix: "", kind: backend.Unavailable, cause: func(t *testing.T, s *server) func() {
			command(t, s, "CONFIG", "SET", "maxclients", "1")
			command(t, s, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			return func() { command(t, s, "CONFIG", "SET", "maxclients", "1000") }
		}},
		{name: "WRONGTYPE", prefix: "WRONGTYPE", kind: backend.Misconfigured, cause: func(t *testing.T, s *server) func() {
			command(t, s, "DEL", storedName("user:1"))
			command(t, s, "RPUSH", storedName("user:1"), "x")
			return func() { command(t, s, "DEL", storedName("user:1")) }
		}},
		{name: "NOPERM", prefix: "NOPERM", kind: backend.Misconfigured, user: &redis.Options{Username: "app", Password: "secret"},
			cause: func(t *testing.T, s *server) func() {
				command(t, s, "ACL", "SETUSER", "app", "-evalsha", "-eval")
				return func() { command(t, s, "ACL", "SETUSER", "app", "+evalsha", "+eval") }
			}},
		{name: "NOAUTH", prefix: "NOAUTH", kind: backend.Misconfigured, cause: func(t *testing.T, s *server) func() {
			command(t, s, "CONFIG", "SET", "requirepass", "secret")
			command(t, s, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			return func() { command(t, s, "CONFIG", "SET", "requirepass", "") }
		}},
		{name: "NOSCRIPT", kind: 0, cause: func(t *testing.T, s *server) func() {
			command(t, s, "SCRIPT", "FLUSH")
			return func() {}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startRedis(t, test.options...)
			if test.user != nil {
				command(t, s, "ACL", "SETUSER", test.user.Username, "on", ">"+test.user.Password, "~*", "&*", "+@all")
			}
			groups, _ := groupsOf(s.addr)
			var mu sync.Mutex
			events := make(map[router.EventKind]bool)
			has := func(kind router.EventKind) bool {
				mu.Lock()
				defer mu.Unlock()
				return events[kind]
			}
			l := limit.PerHour(100)
			c := ours(t, 1, setup{
				groups: groups, policy: one(l), failure: throttler.FailClosed,
				router: router.Config{Redis: test.user, Backend: patient, OnEvent: func(e router.Event) {
					mu.Lock()
					defer mu.Unlock()
					events[e.Kind] = true
				}},
			}).unhurried()
			c.take(2, "user:1")
			repair := test.cause(t, s)
			var err error
			await(t, "the server refuses", func() bool {
				var admitted bool
				admitted, err = c.call(0, "user:1")
				return test.kind == 0 || !admitted && err != nil && strings.Contains(err.Error(), test.prefix)
			})
			typed++
			switch {
			case test.kind == 0 && err != nil:
				t.Errorf("a missing script is an error: %v", err)
				wrong++
			case test.kind != 0 && kind(err) != test.kind:
				t.Errorf("%v is %v, want %v", err, kind(err), test.kind)
				wrong++
			}
			if err != nil && strings.Contains(err.Error(), "user:1") {
				t.Errorf("the error names the key: %v", err)
			}
			switch test.kind {
			case backend.Unavailable:
				await(t, "the breaker opens", func() bool { _, _ = c.call(0, "user:1"); return has(router.BreakerOpened) })
			case backend.Misconfigured:
				for range 20 {
					_, _ = c.call(0, "user:1")
				}
				await(t, "the event reaches the operator", func() bool { return has(router.Misconfigured) })
				if has(router.BreakerOpened) {
					t.Error("the breaker takes a server that answers for dead")
				}
			}
			repair()
			await(t, "the server decides again", func() bool { _, err := c.call(0, "user:2"); return err == nil })
			longest = max(longest, time.Duration(c.longest.Load()))
		})
	}
	report(t, "error-replies", result{sluice: figures{over: unmeasured, longest: longest, note: fmt.Sprintf("%d of %d typed as they should", typed-wrong, typed)}})
}

func configure(name, bad, good string) func(*testing.T, *server) func() {
	return func(t *testing.T, s *server) func() {
		command(t, s, "CONFIG", "SET", name, bad)
		return func() { command(t, s, "CONFIG", "SET", name, good) }
	}
}

// long sends a command that lasts, and returns a wait for its end.
func long(t *testing.T, s *server, args ...any) *sync.WaitGroup {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, ReadTimeout: -1})
	var running sync.WaitGroup
	running.Go(func() {
		defer client.Close()
		_ = client.Do(context.Background(), args...).Err()
	})
	return &running
}

func loading(t *testing.T, s *server) func() {
	command(t, s, "DEBUG", "POPULATE", "20000")
	command(t, s, "SAVE")
	command(t, s, "CONFIG", "SET", "key-load-delay", "200")
	reload := long(t, s, "DEBUG", "RELOAD", "NOSAVE")
	return func() {
		command(t, s, "CONFIG", "SET", "key-load-delay", "0")
		reload.Wait()
	}
}

func busy(t *testing.T, s *server) func() {
	loop := long(t, s, "EVAL", "while true do end", "0")
	return func() {
		command(t, s, "SCRIPT", "KILL")
		loop.Wait()
	}
}
