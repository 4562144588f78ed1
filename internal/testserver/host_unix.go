//go:build unix && !linux

package testserver

import (
	"net"
	"syscall"
	"testing"
)

// reserve returns an address on a port that was free a moment ago: there is no way to hold it, see host_linux.go.
func reserve(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: no free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
