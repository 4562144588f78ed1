//go:build linux

package integration_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// descriptorsEnv holds a shortage in JSON, in the environment of a process of this binary that is to run out of file
// descriptors: in this one all tests would.
const descriptorsEnv = "SLUICE_INTEGRATION_DESCRIPTORS"

// shortage is what a process does and sees that has no file descriptor left, while its connections are lost.
type shortage struct {
	Addr  string // of a proxy
	Max   int64
	Share int64 // of the process, for FailLocal

	Admitted, Maybe int64 // by the server, under FailClosed; and calls that it may have counted
	Closed, Local   int64 // admitted without descriptors, by either policy
	Longest         time.Duration
	Kinds           map[string]int // of errors without descriptors
}

func (s *shortage) play(t *testing.T) {
	l := limit.PerDay(s.Max)
	groups, _ := groupsOf(s.Addr)
	closed := ours(t, 1, setup{groups: groups, policy: one(l), failure: throttler.FailClosed, router: router.Config{Backend: patient}}).unhurried()
	local := ours(t, 1, setup{groups: groups, policy: one(l), failure: throttler.FailLocal, processes: int(s.Max / s.Share),
		router: router.Config{Backend: patient}}).unhurried()
	// use makes calls from several callers at once.
	use := func(c *contender, key string) (admitted int64) {
		before := c.admitted.Load()
		c.takeAtOnce(4, int(s.Share), func(int) string { return key })
		return c.admitted.Load() - before
	}
	s.Admitted = use(closed, "user:1")
	use(local, "user:2")

	var enough syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &enough); err != nil {
		t.Fatal(err)
	}
	allow := func(n uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: enough.Max}); err != nil {
			t.Fatal(err)
		}
	}
	allow(3)                 // the standard ones: no connection that is lost leaves one free
	fmt.Println("exhausted") // the parent drops all connections
	_, _ = fmt.Scanln()
	s.Kinds = make(map[string]int)
	await(t, "a call fails", func() bool { _, err := closed.call(0, "user:1"); return err != nil })
	await(t, "a dial fails", func() bool {
		_, err := net.Dial("tcp", s.Addr)
		return errors.Is(err, syscall.EMFILE)
	})
	for range 50 {
		ok, err := closed.call(0, "user:1")
		if ok {
			s.Closed++
		}
		s.Kinds[kind(err).String()]++
	}
	s.Local = use(local, "user:3")
	allow(enough.Cur)
	await(t, "the server decides again", func() bool { _, err := closed.call(0, "user:1"); return err == nil })
	use(closed, "user:1")
	s.Admitted, s.Maybe = closed.admitted.Load(), closed.maybe.Load()
	s.Longest = time.Duration(max(closed.longest.Load(), local.longest.Load()))
}

// TestNoDescriptors lets a process run out of file descriptors, and then lose its connections.
func TestNoDescriptors(t *testing.T) {
	if text := os.Getenv(descriptorsEnv); text != "" {
		var s shortage
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		s.play(t)
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(string(out))
		return
	}
	t.Parallel()
	server := startRedis(t)
	link := testserver.NewProxy(t, server.addr)
	s := shortage{Addr: link.Addr, Max: 1000, Share: 100}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoDescriptors$")
	cmd.Env = append(os.Environ(), descriptorsEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var printed []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		printed = append(printed, lines.Text())
		switch {
		case lines.Text() == "exhausted":
			link.Cut()
			link.Heal()
			if _, err := fmt.Fprintln(in); err != nil {
				t.Error(err)
			}
		case strings.HasPrefix(lines.Text(), "{"):
			if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || len(s.Kinds) == 0 {
		t.Fatalf("the process without descriptors: %v\n%s", err, strings.Join(printed, "\n"))
	}
	if s.Closed > 0 || s.Local != s.Share {
		t.Errorf("FailClosed admitted %d, and FailLocal %d of its share of %d", s.Closed, s.Local, s.Share)
	}
	if len(s.Kinds) != 1 || s.Kinds[backend.Unavailable.String()] == 0 {
		t.Errorf("kinds of errors: %v", s.Kinds)
	}
	c := &contender{name: "Sluice"}
	counted := c.settled(t, server.addr, "user:1", limit.PerDay(s.Max))
	if counted < s.Admitted || s.Admitted < 4*s.Share {
		t.Errorf("%d counted of %d that were admitted", counted, s.Admitted)
	}
	shown := figures{over: unmeasured, longest: s.Longest, counts: float64(counted) / float64(s.Maybe)}
	shown.note = fmt.Sprintf("without descriptors FailClosed admitted %d and FailLocal its %d", s.Closed, s.Local)
	report(t, "no-descriptors", result{sluice: shown})
}
