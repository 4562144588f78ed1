package testserver

import (
	"fmt"
	"syscall"
	"testing"
)

// reserve returns an address on a port that no other process gets before the test ends, even while no server runs on it.
//
// The port is held by a socket that is bound but doesn't listen. It is bound exclusively, so two tests never hold one
// port, and made sharable only then: the server, which sets SO_REUSEADDR itself, can listen beside it, and the kernel
// gives the port neither to a bind to port 0 nor to an outgoing connection. The latter would otherwise happen to a
// client that keeps dialling a dead server: sooner or later it connects to itself.
func reserve(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("testserver: no socket: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("testserver: no free port: %v", err)
	}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatalf("testserver: SO_REUSEADDR: %v", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatalf("testserver: port: %v", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// processAttributes makes a server a process group of its own, so that an interrupt typed at the terminal reaches the
// test first, and lets the kernel kill it with the test binary. (Strictly, with the thread that started it: Go keeps
// its threads, except those on which a goroutine ends that is locked to its thread.)
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
