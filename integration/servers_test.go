//go:build unix

package integration_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/internal/testserver"
)

// A server is a Redis server that faults are done to. How it runs depends on the form, see local_test.go and
// containers_test.go: startRedis and startMemcached are there.
type server struct {
	addr             string // host:port for the test and for applications, always the same
	peerHost, peerPt string // the same for another server of the test
	client           *redis.Client

	kill    func() // SIGKILL, and wait until it has ended
	pause   func() // freeze
	resume  func()
	restart func() // kill it if it runs, and start an empty one at the same address
}

// ownProcess is a server that is a local process in either form: one that others must reach at the address at which the test
// does, as sentinels and the nodes of a Redis Cluster do, or whose clock the test sets.
func ownProcess(s *testserver.Server) *server {
	host, port, _ := net.SplitHostPort(s.Addr)
	return &server{
		addr: s.Addr, peerHost: host, peerPt: port, client: s.Client(),
		kill: s.Kill, pause: s.Pause, resume: s.Resume, restart: s.Restart,
	}
}

// startReplica starts a replica of primary and waits until it is in sync.
func startReplica(t *testing.T, primary *server, args ...string) *server {
	t.Helper()
	replica := startRedis(t, append([]string{"--replicaof", primary.peerHost + " " + primary.peerPt}, args...)...)
	awaitSync(t, replica, primary)
	return replica
}

// follow makes s a replica of primary, which overwrites what s holds, and waits until it is in sync.
func (s *server) follow(t *testing.T, primary *server) {
	t.Helper()
	command(t, s, "REPLICAOF", primary.peerHost, primary.peerPt)
	awaitSync(t, s, primary)
}

// cutOff ends the replication of s, which stays a replica and holds what it held.
func (s *server) cutOff(t *testing.T) {
	t.Helper()
	command(t, s, "REPLICAOF", "127.0.0.1", "1") // nothing listens there
}

// promote makes s a primary.
func (s *server) promote(t *testing.T) {
	t.Helper()
	command(t, s, "REPLICAOF", "NO", "ONE")
}

// awaitSync waits until all that the primary holds now has arrived at the replica.
func awaitSync(t *testing.T, replica, primary *server) {
	t.Helper()
	want, _ := strconv.ParseInt(info(t, primary, "replication")["master_repl_offset"], 10, 64)
	await(t, "the replica is in sync", func() bool {
		fields := info(t, replica, "replication")
		got, _ := strconv.ParseInt(fields["slave_repl_offset"], 10, 64)
		return fields["master_link_status"] == "up" && got >= want
	})
}

// info returns the fields of a section of INFO; none while the server doesn't answer.
func info(t *testing.T, s *server, section string) map[string]string {
	t.Helper()
	fields := make(map[string]string)
	for line := range strings.Lines(s.client.Info(t.Context(), section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// command sends one command that must succeed.
func command(t *testing.T, s *server, args ...any) {
	t.Helper()
	if err := s.client.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args[0], err)
	}
}

// plainClient sends the given commands and nothing else.
func plainClient(t *testing.T, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// patience is how long a test waits for what must come.
const patience = time.Minute

// await polls until ok holds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
