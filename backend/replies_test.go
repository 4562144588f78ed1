//go:build unix

package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// TestRedisRefusals provokes the error replies of a server that answers: none has charged, and what only a person can
// mend is told from what may pass.
func TestRedisRefusals(t *testing.T) {
	t.Parallel()
	do := func(t *testing.T, s *testserver.Server, args ...any) {
		t.Helper()
		if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	for _, test := range []struct {
		name    string
		kind    backend.Kind
		prepare func(t *testing.T, s *testserver.Server) (addr string, opts redis.Options)
	}{
		{"a password is wanted", backend.Misconfigured, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "CONFIG", "SET", "requirepass", "s3cret")
			return s.Addr, redis.Options{}
		}},
		{"a wrong password", backend.Misconfigured, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "CONFIG", "SET", "requirepass", "s3cret")
			return s.Addr, redis.Options{Password: "guess"}
		}},
		{"no right to the script", backend.Misconfigured, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "ACL", "SETUSER", "app", "on", ">pw", "~sl:*", "+get", "+set", "+time", "+info", "+hello")
			return s.Addr, redis.Options{Username: "app", Password: "pw"}
		}},
		{"no right to the key", backend.Misconfigured, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "ACL", "SETUSER", "app", "on", ">pw", "~other:*", "+@all")
			return s.Addr, redis.Options{Username: "app", Password: "pw"}
		}},
		{"another type at the key", backend.Misconfigured, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "HSET", stored(secret), "a", "b")
			return s.Addr, redis.Options{}
		}},
		{"no state at the key", backend.Corrupt, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "SET", stored(secret), "hello")
			return s.Addr, redis.Options{}
		}},
		{"a replica", backend.Unavailable, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			return testserver.Replica(t, s).Addr, redis.Options{}
		}},
		{"no memory", backend.Unavailable, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "CONFIG", "SET", "maxmemory", "1")
			return s.Addr, redis.Options{}
		}},
		{"too few replicas", backend.Unavailable, func(t *testing.T, s *testserver.Server) (string, redis.Options) {
			do(t, s, "CONFIG", "SET", "min-replicas-to-write", "1")
			return s.Addr, redis.Options{}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			addr, opts := test.prepare(t, server)
			opts.Addr = addr
			b := openRedisWith(t, &opts, backend.RedisConfig{})
			for range 2 { // the second EVALSHA finds the script
				_, err := b.Take(context.Background(), request(secret))
				wantError(t, err, test.kind, false)
			}
		})
	}
}

// TestRedisRights: the rights that Redis's doc names are enough.
func TestRedisRights(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	err := server.Client().Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~sl:*",
		"+get", "+set", "+evalsha", "+eval", "+time", "+info", "+ping", "+hello").Err()
	if err != nil {
		t.Fatal(err)
	}
	b := openRedisWith(t, &redis.Options{Addr: server.Addr, Username: "app", Password: "pw"}, backend.RedisConfig{})
	taken := mustTake(t, b, request(secret))
	each(b, request(secret), taken.Receipt(), func(op string, _ bool, err error) {
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	})
}

// TestRedisBusy: a server that runs somebody's endless script refuses, and has charged nothing.
func TestRedisBusy(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--lua-time-limit", "1")
	b := openRedis(t, server.Addr, backend.RedisConfig{Timeout: 5 * time.Second})
	mustTake(t, b, request(secret))
	admin := server.Client()
	endless := make(chan error, 1)
	go func() { endless <- admin.Eval(context.Background(), "while true do end", nil).Err() }()
	deadline := time.Now().Add(patient)
	for !redis.HasErrorPrefix(admin.Ping(t.Context()).Err(), "BUSY") {
		if time.Now().After(deadline) {
			t.Fatal("the server is not busy")
		}
	}
	_, err := b.Take(context.Background(), request(secret))
	wantError(t, err, backend.Unavailable, false)
	if err := admin.ScriptKill(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	<-endless
	if got := used(t, server, secret); got != 1 {
		t.Errorf("%d charged, want 1", got)
	}
}

// TestRedisFull: a server that takes no more clients refuses, and has charged nothing.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	admin := server.Client()
	if err := admin.ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil {
		t.Fatal(err)
	}
	b := openRedis(t, server.Addr, backend.RedisConfig{})
	_, err := b.Take(context.Background(), request(secret))
	wantError(t, err, backend.Unavailable, false)
}

// Josiah Carlson's cases on a real server: 240 an hour in minutes, limits in any order, only what is admitted counts.
func TestCarlson(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	start := time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)
	now := start
	b := openRedis(t, server.Addr, backend.RedisConfig{Now: func() time.Time { return now }})
	hour, second := limit.Sliding(240, time.Hour, time.Minute), limit.PerSecond(10)
	take := func(key string, p *limit.Policy, cost int64) bool {
		t.Helper()
		r := mustTake(t, b, backend.Request{Key: key, Policy: p, Cost: cost})
		return r.Allowed
	}
	t.Run("any order", func(t *testing.T) {
		orders := []*limit.Policy{
			{Name: "one", Limits: []limit.Limit{hour, second}}, {Name: "two", Limits: []limit.Limit{second, hour}},
		}
		admitted := [2]int{}
		for i := range 600 { // ten seconds at 60 a second
			now = start.Add(time.Duration(i) * time.Second / 60)
			for j, p := range orders {
				if take("user", p, 1) {
					admitted[j]++
				}
			}
		}
		if admitted != [2]int{100, 100} {
			t.Errorf("admitted %v, want 100 each", admitted)
		}
	})
	t.Run("only what is admitted counts", func(t *testing.T) {
		p := &limit.Policy{Name: "three", Limits: []limit.Limit{hour}}
		admitted := 0
		for i := range 3600 { // an hour at one a second; package limit does it at a hundred
			now = start.Add(time.Duration(i) * time.Second)
			if take("user", p, 1) {
				admitted++
			}
		}
		if admitted != 240 {
			t.Errorf("admitted %d, want 240", admitted)
		}
	})
	t.Run("20 of 6:05 are back at 7:05", func(t *testing.T) {
		p := &limit.Policy{Name: "four", Limits: []limit.Limit{hour}}
		now = start.Add(5*time.Minute + 30*time.Second)
		take("user", p, 20)
		now = start.Add(40 * time.Minute)
		take("user", p, 220)
		for _, step := range []struct {
			at   time.Duration
			cost int64
			want bool
		}{
			{65*time.Minute - time.Millisecond, 1, false},
			{65 * time.Minute, 21, false},
			{65 * time.Minute, 20, true},
			{65 * time.Minute, 1, false},
		} {
			now = start.Add(step.at)
			if got := take("user", p, step.cost); got != step.want {
				t.Errorf("%d at 6:00 + %s: %t, want %t", step.cost, step.at, got, step.want)
			}
		}
	})
}

// Two keys that a script with derived names would mix up are strangers.
func TestAliceHasNoExpiry(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := openRedis(t, server.Addr, backend.RedisConfig{})
	p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(1)}}
	for _, key := range []string{"alice", "alice:exp", "alice:reset_at", "p:alice"} {
		if r := mustTake(t, b, backend.Request{Key: key, Policy: p, Cost: 1}); !r.Allowed {
			t.Errorf("%s pays for another key", key)
		}
	}
}
