//go:build unix && !containers

package integration_test

import (
	"os/exec"
	"regexp"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/internal/testserver"
)

const form = "local processes"

// engineLeaks are goroutines that outlive the tests in this form: none.
var engineLeaks []goleak.Option

// startRedis starts an empty Redis server that stores nothing on disk. args are as on its command line.
func startRedis(t *testing.T, args ...string) *server {
	t.Helper()
	return ownProcess(testserver.Redis(t, args...))
}

// startMemcached starts a Memcached server and returns its address.
func startMemcached(t *testing.T) string {
	t.Helper()
	return testserver.Memcached(t).Addr
}

// serverVersion is what the servers are.
func serverVersion() string {
	out, _ := exec.Command("redis-server", "--version").Output()
	if m := regexp.MustCompile(`v=(\S+)`).FindSubmatch(out); m != nil {
		return "redis-server " + string(m[1])
	}
	return "redis-server"
}
