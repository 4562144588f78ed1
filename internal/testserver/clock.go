//go:build linux

package testserver

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// clockSource is the shim that a server with a clock of the test's own is started with. libfaketime would be another, but it
// hangs in servers with jemalloc.
//
//go:embed testdata/clock.c
var clockSource []byte

// A Clock is how far the wall clocks of some servers are off. Their monotonic clocks go on as they did.
type Clock struct {
	shim, offset string // files

	mu  sync.Mutex // guards what follows
	off time.Duration
}

// NewClock compiles the shim, which needs a C compiler, cc. The clock is right until it is stepped.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "clock.c")
	c := &Clock{shim: filepath.Join(dir, "clock.so"), offset: filepath.Join(dir, "offset")}
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	c.write(t)
	if out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", c.shim, source).CombinedOutput(); err != nil {
		t.Fatalf("testserver: the clock's shim: %v: run `make test`, which installs a C compiler, or install Debian's gcc and libc6-dev\n%s",
			err, out)
	}
	return c
}

// Step puts the clock forward, or back.
func (c *Clock) Step(t testing.TB, by time.Duration) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += by
	c.write(t)
}

// write stores the offset where servers have it mapped: eight bytes in place, at once.
func (c *Clock) write(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile(c.offset, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(c.off.Microseconds())))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
}

// env is what a server is started with.
func (c *Clock) env() []string {
	return append(os.Environ(), "LD_PRELOAD="+c.shim, "TESTSERVER_CLOCK="+c.offset)
}

// ClockedRedis is Redis with a clock.
func ClockedRedis(t testing.TB, c *Clock, args ...string) *Server {
	t.Helper()
	k := redisKind(args)
	k.env = c.env()
	return start(t, k)
}
