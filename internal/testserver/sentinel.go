//go:build unix

package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisopts"
)

// Sentinels starts three sentinels, of which two must agree, that watch over primary under the name master. It waits until
// each knows the others and the replicas. They take a server for dead after two seconds: a busy machine may stop one for half
// a second. config is further lines of their configuration, such as "requirepass secret".
//
// One that is restarted knows what it was started with: the primary of that time.
func Sentinels(t testing.TB, master string, primary *Server, replicas int, config ...string) []*Server {
	t.Helper()
	const count = 3
	host, port, _ := strings.Cut(primary.Addr, ":")
	lines := append([]string{
		fmt.Sprintf("sentinel monitor %s %s %s %d", master, host, port, count/2+1),
		"sentinel down-after-milliseconds " + master + " 2000",
		"sentinel failover-timeout " + master + " 2000",
		"sentinel parallel-syncs " + master + " 1",
	}, config...)
	all := make([]*Server, count)
	for i := range all {
		all[i] = start(t, kind{
			program: "redis-server",
			args: func(port, dir string) []string {
				path := filepath.Join(dir, "sentinel.conf") // it writes there what it learns
				text := strings.Join(append([]string{"port " + port, "bind 127.0.0.1", "dir " + dir}, lines...), "\n") + "\n"
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatalf("testserver: %v", err)
				}
				return []string{path, "--sentinel"}
			},
			ping: "PING",
			pong: func(string) bool { return true },
		})
	}
	for _, s := range all {
		c := s.Sentinel()
		s.await("the sentinels know each other and the servers", func() bool {
			m, err := c.Master(t.Context(), master).Result()
			return err != nil && strings.Contains(err.Error(), "NOAUTH") || // then only the time tells
				m["num-other-sentinels"] == strconv.Itoa(count-1) && m["num-slaves"] == strconv.Itoa(replicas) && m["flags"] == "master"
		})
	}
	return all
}

// Sentinel returns a client for a server that is a sentinel.
func (s *Server) Sentinel() *redis.SentinelClient {
	o := redis.Options{Addr: s.Addr}
	redisopts.Harden(&o, 0)
	c := redis.NewSentinelClient(&o)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) await(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(startTimeout); !ok(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			s.t.Fatalf("testserver: waited in vain: %s (%s)", what, s.Addr)
		}
	}
}
