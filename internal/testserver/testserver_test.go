//go:build unix

package testserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t, "--appendonly", "yes") // even what is on disk is lost
	ctx, c := t.Context(), s.Client()
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(){"Kill": s.Kill, "Stop": s.Stop} {
		addr := s.Addr
		end()
		if _, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial after %s: %v, want refused", name, err)
		}
		s.Restart()
		if s.Addr != addr {
			t.Errorf("restarted on %s, was on %s", s.Addr, addr)
		}
		if n, err := c.Exists(ctx, "k").Result(); n != 0 || err != nil {
			t.Errorf("restarted server: %d keys, %v; want none", n, err)
		}
	}
	s.Kill()
	s.Kill() // of a dead one: nothing happens
	s.Pause()
	s.Stop()
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	c := s.Client().WithTimeout(100 * time.Millisecond)
	if err := s.Client().Ping(t.Context()).Err(); err != nil { // a connection that has its handshake behind it
		t.Fatal(err)
	}
	s.Pause()
	if err := c.Incr(t.Context(), "n").Err(); !isTimeout(err) {
		t.Errorf("call to a paused server: %v, want a timeout", err)
	}
	s.Resume()
	for deadline := time.Now().Add(5 * time.Second); s.Client().Get(t.Context(), "n").Val() != "1"; {
		if time.Now().After(deadline) {
			t.Fatal("the call that waited hasn't run after the thaw")
		}
	}
	s.Pause()
	start := time.Now()
	s.Stop() // ends a paused one too, and in order
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("stopping a paused server took %v", took)
	}
	if _, err := net.Dial("tcp", s.Addr); err == nil {
		t.Error("a stopped server accepts a connection")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]bool) // of the tests that run now
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t)
			s.Restart()
			mu.Lock()
			defer mu.Unlock()
			if seen[s.Addr] {
				t.Errorf("%s given twice", s.Addr)
			}
			seen[s.Addr] = true
			t.Cleanup(func() { // before the port is given back
				mu.Lock()
				defer mu.Unlock()
				delete(seen, s.Addr)
			})
		})
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t, "--maxmemory", "5mb", "--maxmemory-policy", "volatile-lru", "--save", "60 1000")
	got, err := s.Client().ConfigGet(t.Context(), "maxmemory*").Result()
	if err != nil || got["maxmemory"] != "5242880" || got["maxmemory-policy"] != "volatile-lru" {
		t.Errorf("config = %v, %v", got, err)
	}
	if err := s.Client().Do(t.Context(), "DEBUG", "SLEEP", "0").Err(); err != nil {
		t.Errorf("DEBUG: %v", err)
	}
	testserver.Redis(t, "--requirepass", "secret") // ready although it answers NOAUTH
}

func TestReplica(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	if err := primary.Client().Set(t.Context(), "before", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	replica := testserver.Replica(t, primary)
	if err := primary.Client().Set(t.Context(), "after", "2", 0).Err(); err != nil {
		t.Fatal(err)
	}
	replica.AwaitSync(primary)
	check := func() {
		t.Helper()
		if got, err := replica.Client().MGet(t.Context(), "before", "after").Result(); err != nil ||
			fmt.Sprint(got) != "[1 2]" {
			t.Errorf("replica holds %v, %v", got, err)
		}
	}
	check()
	if err := replica.Client().Set(t.Context(), "k", "v", 0).Err(); err == nil ||
		!strings.HasPrefix(err.Error(), "READONLY") {
		t.Errorf("write to a replica: %v", err)
	}
	replica.Restart()
	replica.AwaitSync(primary)
	check()
}

func TestStats(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	for range 3 {
		s.Client().Incr(t.Context(), "n")
	}
	s.Client().ConfigGet(t.Context(), "save")
	if got := s.Stats(t); got["incr"] != 3 || got["config|get"] != 1 || got["client|setinfo"] != 0 {
		t.Errorf("stats = %v", got)
	}
	s.ResetStats(t)
	if got := s.Stats(t); got["incr"] != 0 {
		t.Errorf("stats after reset = %v", got)
	}
}

func TestMemcached(t *testing.T) {
	t.Parallel()
	s := testserver.Memcached(t, "-m", "8")
	if got := ask(t, s.Addr, "set k 0 0 1\r\nv"); got != "STORED" {
		t.Errorf("set: %q", got)
	}
	if got := ask(t, s.Addr, "get k"); got != "VALUE k 0 1" {
		t.Errorf("get: %q", got)
	}
	s.Restart()
	if got := ask(t, s.Addr, "get k"); got != "END" {
		t.Errorf("get after restart: %q", got)
	}
}

// ask sends one line and returns the first line of the answer.
func ask(t *testing.T, addr, line string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "%s\r\n", line)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

func TestFailures(t *testing.T) {
	got := fatal(t, func(t testing.TB) { testserver.Redis(t, "--no-such-option", "1") })
	if !strings.Contains(got, "no-such-option") {
		t.Errorf("bad option: %q, want what the server printed", got)
	}
	t.Setenv("PATH", "")
	for program, run := range map[string]func(testing.TB){
		"redis-server": func(t testing.TB) { testserver.Redis(t) },
		"memcached":    func(t testing.TB) { testserver.Memcached(t) },
	} {
		got := fatal(t, run)
		if !strings.Contains(got, program+" not found on PATH") || !strings.Contains(got, "make test") {
			t.Errorf("without %s: %q", program, got)
		}
	}
}

// fatal runs f and returns what it failed the test with.
func fatal(t *testing.T, f func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.message
}

type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
