//go:build unix

// Package testserver runs real Redis and Memcached servers for tests, and puts faults between them and a client.
//
//	primary := testserver.Redis(t)
//	replica := testserver.Replica(t, primary)
//	primary.Pause() // everything sent to it now waits
//
//	proxy := testserver.NewProxy(t, primary.Addr)
//	proxy.SetFault(func(args []string) testserver.Action { return testserver.CloseAfter })
//
// A server is a process of its own on a free port of 127.0.0.1, with its data in a directory that the test removes.
// It dies with the test: by t.Cleanup, and on Linux by the kernel when the test binary itself is killed. Nothing is
// ended by name, so any number of test binaries run side by side. A missing program fails the test, it never skips it.
//
// Signals and Addr may be used from any goroutine. What can fail the test (the constructors, Restart, AwaitSync, Heal,
// Stats) belongs to the test's own goroutine, as t.Fatal does. Unix only; elsewhere the package is empty.
package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 30 * time.Second // generous: a loaded machine, the race detector
	stopTimeout  = 5 * time.Second
	pollInterval = 5 * time.Millisecond
)

var errPortTaken = errors.New("port taken by another process")

// kind is what Redis and Memcached differ in.
type kind struct {
	program string // also the name of Debian's package
	args    func(port, dir string) []string
	env     []string // nil: that of this process
	ping    string   // one line that a ready server answers with a line that pong accepts
	pong    func(line string) bool
}

// A Server is one server process, or several in a row on the same address.
type Server struct {
	Addr string // host:port, the same for the whole test

	t      testing.TB
	kind   kind
	dir    string
	client func() *redis.Client
	tls    string // the address that TLS is served at; empty for none

	mu      sync.Mutex // guards process
	process *process   // the latest one, possibly dead; nil before the first
}

type process struct {
	cmd    *exec.Cmd
	log    string        // file with what it printed
	exited chan struct{} // closed once it is waited for
}

// start runs a server of the given kind and waits until it answers.
func start(t testing.TB, k kind) *Server {
	t.Helper()
	s := &Server{t: t, kind: k, dir: t.TempDir()} // the directory first: it goes after the process that uses it
	s.client = sync.OnceValue(s.newClient)
	t.Cleanup(s.cleanup)
	var err error
	for range 5 { // where reserve can't hold a port, another process may have been faster
		s.Addr = reserve(t)
		if err = s.launch(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return s
}

func (s *Server) launch() error {
	path, err := exec.LookPath(s.kind.program)
	if err != nil {
		return fmt.Errorf("%[1]s not found on PATH: run `make test`, which installs it, or install Debian's %[1]s",
			s.kind.program)
	}
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "") // for each process its own: a restarted server finds nothing
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()

	cmd := exec.Command(path, s.kind.args(port, dir)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, s.kind.env, log, log
	cmd.SysProcAttr = processAttributes()
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, log: log.Name(), exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is of no interest: tests kill it
		close(p.exited)
	}()
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	return s.awaitReady(p)
}

func (s *Server) awaitReady(p *process) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(pollInterval) {
		select {
		case <-p.exited:
			out := tail(p.log)
			if strings.Contains(out, "ddress already in use") {
				return errPortTaken
			}
			return fmt.Errorf("%s ended at once:\n%s", s.kind.program, out)
		default:
		}
		if s.kind.answers(s.Addr) {
			return nil
		}
	}
	return fmt.Errorf("%s doesn't answer after %v:\n%s", s.kind.program, startTimeout, tail(p.log))
}

// RedisAnswers tells whether a Redis server at addr (host:port) answers commands, if only with NOAUTH: it has loaded its
// data. That addr accepts connections says less: Docker's proxy does before the server in the container listens.
func RedisAnswers(addr string) bool { return redisKind(nil).answers(addr) }

// MemcachedAnswers does the same for a Memcached server.
func MemcachedAnswers(addr string) bool { return memcachedKind(nil).answers(addr) }

func (k kind) answers(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(k.ping + "\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && k.pong(line)
}

// Kill ends the server with SIGKILL and waits for its exit. Its port stays reserved: connections are refused.
func (s *Server) Kill() {
	if p := s.signal(syscall.SIGKILL); p != nil {
		<-p.exited
	}
}

// Stop ends the server with SIGTERM, as an operator would, and waits for its exit.
func (s *Server) Stop() {
	p := s.signal(syscall.SIGTERM)
	if p == nil {
		return
	}
	s.Resume() // a stopped process acts on no signal but SIGKILL
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		s.Kill()
	}
}

// Pause freezes the server with SIGSTOP: the kernel still accepts connections and data for it, nothing answers.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on, with all that was sent to it meanwhile.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

// Restart kills the server if it runs and starts an empty one on the same address with the same options.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.launch(); err != nil {
		s.t.Fatalf("testserver: restart on %s: %v", s.Addr, err)
	}
}

// signal sends to the latest process, and does nothing to one that has exited. It returns nil if none was started.
func (s *Server) signal(sig syscall.Signal) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	_ = s.process.cmd.Process.Signal(sig) // os.ErrProcessDone if it has exited
	return s.process
}

func (s *Server) cleanup() {
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && s.t.Failed() {
		s.t.Logf("%s on %s printed last:\n%s", s.kind.program, s.Addr, tail(s.process.log))
	}
}

// tail returns the last lines of a file.
func tail(name string) string {
	const most = 2048
	data, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-most):]))
}
