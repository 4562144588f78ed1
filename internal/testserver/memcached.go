//go:build unix

package testserver

import (
	"os"
	"strings"
	"testing"
)

// Memcached starts a Memcached server, TCP only. args are further options as on its command line, for example "-m",
// "1". Client, Stats and AwaitSync are not for it.
func Memcached(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, memcachedKind(args))
}

func memcachedKind(extra []string) kind {
	return kind{
		program: "memcached",
		args: func(port, _ string) []string {
			all := []string{"-l", "127.0.0.1", "-p", port, "-U", "0"}
			if os.Getuid() == 0 {
				all = append(all, "-u", "root") // it refuses to run as root without -u
			}
			return append(all, extra...)
		},
		ping: "version",
		pong: func(line string) bool { return strings.HasPrefix(line, "VERSION") },
	}
}
