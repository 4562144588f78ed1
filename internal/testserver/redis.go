//go:build unix

package testserver

import (
	"context"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisopts"
)

// Redis starts a Redis server without persistence. args are further options as on its command line, for example
// "--maxmemory", "1mb"; a later one overrides an earlier one.
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, redisKind(args))
}

func redisKind(extra []string) kind {
	return kind{
		program: "redis-server",
		args: func(port, dir string) []string {
			all := []string{
				"--port", port, "--bind", "127.0.0.1", "--dir", dir,
				"--save", "", "--appendonly", "no",
				"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", // a replica attaches at once
				"--repl-ping-replica-period", "1", // and tells soon that its primary went silent
			}
			if redisMajor() >= 7 {
				all = append(all, "--enable-debug-command", "local")
			}
			return append(all, extra...)
		},
		ping: "PING",
		// Errors of Redis will do, NOAUTH for example, once the data set is loaded.
		pong: func(line string) bool {
			return strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "-LOADING")
		},
	}
}

// Replica starts a replica of primary and waits until it is in sync. A restarted one attaches again by itself, but
// Restart doesn't wait for that: see AwaitSync.
func Replica(t testing.TB, primary *Server, args ...string) *Server {
	t.Helper()
	host, port, _ := strings.Cut(primary.Addr, ":")
	replica := Redis(t, append([]string{"--replicaof", host, port}, args...)...)
	replica.AwaitSync(primary)
	return replica
}

// AwaitSync waits until the link to the primary is up and all that the primary holds at the time of the call has
// arrived.
func (s *Server) AwaitSync(primary *Server) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	want, err := offset(ctx, primary, "master_repl_offset")
	for err == nil {
		var info map[string]string
		if info, err = s.info(ctx, "replication"); err != nil {
			break
		}
		got, _ := strconv.ParseInt(info["slave_repl_offset"], 10, 64)
		if info["master_link_status"] == "up" && got >= want {
			return
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(pollInterval):
		}
	}
	s.t.Fatalf("testserver: %s isn't in sync with its primary %s: %v", s.Addr, primary.Addr, err)
}

func offset(ctx context.Context, s *Server, field string) (int64, error) {
	info, err := s.info(ctx, "replication")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info[field], 10, 64)
}

// Client returns the server's own plain client, made at the first call and closed with the test. It sends what it is
// told to and nothing else: no retries, no handshake but HELLO, so that Stats counts the test's calls.
func (s *Server) Client() *redis.Client { return s.client() }

func (s *Server) newClient() *redis.Client {
	o := redis.Options{Addr: s.Addr}
	redisopts.Harden(&o, 0)
	c := redis.NewClient(&o)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Stats returns how often each command was called since the start or ResetStats, by its lower-case name as INFO
// commandstats has it ("evalsha", "client|setinfo"). Calls made by scripts count too.
func (s *Server) Stats(t testing.TB) map[string]int64 {
	t.Helper()
	info, err := s.info(t.Context(), "commandstats")
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	calls := make(map[string]int64)
	for name, stats := range info { // cmdstat_get:calls=3,usec=12,...
		first, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
		if err != nil {
			t.Fatalf("testserver: %s:%s: %v", name, stats, err)
		}
		calls[strings.TrimPrefix(name, "cmdstat_")] = n
	}
	return calls
}

// ResetStats sets all counts of Stats to zero.
func (s *Server) ResetStats(t testing.TB) {
	t.Helper()
	if err := s.Client().ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatalf("testserver: %v", err)
	}
}

// info returns the fields of a section of INFO.
func (s *Server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.Client().Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// redisMajor is the major version of the installed server, 0 if unknown.
var redisMajor = sync.OnceValue(func() int {
	out, _ := exec.Command("redis-server", "--version").Output()
	m := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(out)
	if m == nil {
		return 0
	}
	major, _ := strconv.Atoi(string(m[1]))
	return major
})
