//go:build unix

package throttler_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// misconfigurations are what a person has to fix, at the server or here. Each breaks a server that serves TLS and returns
// options that don't work with it.
var misconfigurations = map[string]func(*testing.T, *testserver.Server, *testserver.Authority, *redis.Options){
	"wrong password": func(t *testing.T, s *testserver.Server, _ *testserver.Authority, _ *redis.Options) {
		configure(t, s, "ACL", "SETUSER", "app", "resetpass", ">changed")
	},
	"unknown user": func(t *testing.T, s *testserver.Server, _ *testserver.Authority, _ *redis.Options) {
		configure(t, s, "ACL", "DELUSER", "app")
	},
	"rights taken": func(t *testing.T, s *testserver.Server, _ *testserver.Authority, _ *redis.Options) {
		configure(t, s, "ACL", "SETUSER", "app", "-@all")
	},
	"expired certificate": func(t *testing.T, s *testserver.Server, a *testserver.Authority, opts *redis.Options) {
		opts.Addr = s.SetCertificate(t, a, "127.0.0.1", time.Now().Add(-time.Hour), false)
	},
	"certificate of another host": func(t *testing.T, s *testserver.Server, a *testserver.Authority, opts *redis.Options) {
		opts.Addr = s.SetCertificate(t, a, "redis.example.com", time.Now().Add(time.Hour), false)
	},
	"wrong authority": func(t *testing.T, s *testserver.Server, _ *testserver.Authority, opts *redis.Options) {
		opts.Addr = s.SetCertificate(t, testserver.NewAuthority(t), "127.0.0.1", time.Now().Add(time.Hour), false)
	},
	"client certificate wanted": func(t *testing.T, s *testserver.Server, a *testserver.Authority, opts *redis.Options) {
		opts.Addr = s.SetCertificate(t, a, "127.0.0.1", time.Now().Add(time.Hour), true)
	},
}

// configure changes a server with its own rights.
func configure(t *testing.T, s *testserver.Server, args ...any) {
	t.Helper()
	if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// wantMisconfigured checks that the error of a call comes to say which server has to be configured otherwise, and that
// nothing was charged. The first calls may meet connections that were killed, or a server that hangs up before its alert is
// read.
func wantMisconfigured(t *testing.T, what, node string, call func() error) {
	t.Helper()
	var err error
	poll(t, func() bool {
		err = call()
		typed, ok := errors.AsType[*backend.Error](err)
		return ok && typed.Kind == backend.Misconfigured
	})
	if typed, _ := errors.AsType[*backend.Error](err); typed.MayHaveCharged || !strings.Contains(typed.Node, node) {
		t.Errorf("%s: %v, want the node %s, and nothing charged", what, err, node)
	}
}

// secured is a server with a user and a certificate, and options that work with it.
func secured(t *testing.T) (*testserver.Server, *testserver.Authority, *redis.Options) {
	s, a := testserver.Redis(t), testserver.NewAuthority(t)
	configure(t, s, "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")
	return s, a, &redis.Options{
		Addr:     s.SetCertificate(t, a, "127.0.0.1", time.Now().Add(time.Hour), false),
		Username: "app", Password: "secret", TLSConfig: a.Trust(),
	}
}

// What only a person can fix is typed as that, by a node alone and behind a router, at the start and later. It is loud, and
// with RequireReachable nothing starts.
func TestMisconfiguredServersAreNamed(t *testing.T) {
	t.Parallel()
	for name, breakIt := range misconfigurations {
		for _, protocol := range []int{2, 3} {
			t.Run(name+map[int]string{2: ", RESP2", 3: ", RESP3"}[protocol], func(t *testing.T) {
				t.Parallel()
				s, authority, opts := secured(t)
				opts.Protocol = protocol
				cfg := redisbackend.Config{Timeout: 5 * time.Second}
				open := func() (node, routed backend.Backend) {
					node, err := redisbackend.Open(opts, cfg)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = node.Close() })
					routed, err = router.Open(router.Topology{Groups: []router.Group{{Name: "g", Primary: opts.Addr}}},
						router.Config{Redis: opts, Backend: cfg})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = routed.Close() })
					return node, routed
				}
				policy := throttlertesting.One(limit.PerHour(10))
				node, routed := open()
				book := &throttlertesting.LogBook{}
				later := map[string]*throttler.Throttler{}
				for which, b := range map[string]backend.Backend{"node": node, "router": routed} {
					later[which] = throttlertesting.New(t, throttler.Config{
						Backend: b, Policy: policy, Processes: 5, Logger: book.Logger(), RequireReachable: true,
					})
					if d := throttlertesting.Allow(t, later[which], "k"); d.Source != throttler.Primary {
						t.Fatalf("%s: decided by %s, %v, want a server that works", which, d.Source, d.Cause)
					}
				}

				before := opts.Addr
				breakIt(t, s, authority, opts)
				configure(t, s, "CLIENT", "KILL", "SKIPME", "YES")
				for which, th := range later {
					wantMisconfigured(t, which+" later", before, func() error { return throttlertesting.Allow(t, th, "k").Cause })
					wantMisconfigured(t, which+" pinged later", before, func() error { return th.Ping(t.Context()) })
				}
				if got := book.Levels(); got[slog.LevelError] == 0 {
					t.Errorf("logged %v, want errors", got)
				}

				node, routed = open()
				for which, b := range map[string]backend.Backend{"node": node, "router": routed} {
					wantMisconfigured(t, which+" at the start", opts.Addr, func() error {
						th, err := throttler.New(throttler.Config{Backend: b, Policy: policy, RequireReachable: true})
						if th != nil || err == nil {
							t.Fatalf("%s: New = %v, %v, want an error alone", which, th, err)
						}
						return err
					})
					th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy, Logger: book.Logger()})
					wantMisconfigured(t, which+" without RequireReachable", opts.Addr, func() error { return throttlertesting.Allow(t, th, "k").Cause })
				}
			})
		}
	}
}
