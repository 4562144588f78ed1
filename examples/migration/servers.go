package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-go/sluice/router"
)

const (
	groups    = 3
	startTime = 20 * time.Second // for a server to answer
	pollEvery = 10 * time.Millisecond
)

// servers are where the release is played.
type servers struct {
	topology  router.Topology
	memcached string

	cache    *child   // the Memcached, if it is ours
	children []*child // all that are ours
}

// openServers takes the servers that the options name, or starts some of its own with their data below dir.
func openServers(ctx context.Context, o options, dir string) (*servers, error) {
	if o.topology != "" {
		topology, err := router.LoadTopology(o.topology)
		return &servers{topology: topology, memcached: o.memcached}, err
	}
	for _, program := range []string{"redis-server", "memcached"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not on PATH: on Debian, apt-get install redis-server memcached; "+
				"or name servers that run already: -topology FILE -memcached host:port", program)
		}
	}
	s := &servers{}
	if err := s.start(ctx, dir); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *servers) start(ctx context.Context, dir string) (err error) {
	launch := func(k kind) *child {
		if err != nil {
			return nil
		}
		var c *child
		if c, err = startChild(ctx, k, dir); err == nil {
			s.children = append(s.children, c)
		}
		return c
	}
	if s.cache = launch(memcachedKind); err != nil {
		return err
	}
	s.memcached = s.cache.addr
	s.topology = router.Topology{Epoch: 1}
	var replicas []*child
	for i := range groups {
		primary := launch(redis)
		if err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(primary.addr)
		replica := launch(redis.with("--replicaof", host, port))
		if err != nil {
			return err
		}
		replicas = append(replicas, replica)
		s.topology.Groups = append(s.topology.Groups, router.Group{
			Name: fmt.Sprintf("redis-%d", i+1), Primary: primary.addr, Replicas: []string{replica.addr},
		})
	}
	for _, replica := range replicas {
		if err := replica.await(ctx, "INFO replication", "master_link_status:up"); err != nil {
			return err
		}
	}
	return nil
}

// retireMemcached ends it, if it is ours: it is no longer needed.
func (s *servers) retireMemcached() {
	if s.cache != nil {
		s.cache.stop()
	}
}

func (s *servers) stop() {
	for _, c := range s.children {
		c.stop()
	}
}

// kind is how to run a program, and how to know that it was our process who answered: another one may have been faster
// to take the port.
type kind struct {
	program string
	args    func(port string) []string
	ask     string
	proof   string // a format with the process id
}

var redis = kind{
	program: "redis-server",
	args: func(port string) []string {
		return []string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
			"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"} // a replica attaches at once
	},
	ask: "INFO server", proof: "process_id:%d",
}

var memcachedKind = kind{
	program: "memcached",
	args: func(port string) []string {
		args := []string{"-l", "127.0.0.1", "-p", port, "-U", "0"}
		if os.Getuid() == 0 {
			args = append(args, "-u", "root") // it refuses to run as root without -u
		}
		return args
	},
	ask: "stats", proof: "STAT pid %d",
}

func (k kind) with(more ...string) kind {
	args := k.args
	k.args = func(port string) []string { return append(args(port), more...) }
	return k
}

// child is one server of ours.
type child struct {
	kind
	addr   string
	log    string // file with what it printed
	cmd    *exec.Cmd
	exited chan struct{} // closed once it is waited for
}

var errPortTaken = errors.New("another process took its port")

// startChild runs a server on a free port of the loopback interface and waits until it answers.
func startChild(ctx context.Context, k kind, dir string) (c *child, err error) {
	for range 5 {
		if c, err = launchChild(k, dir); err != nil {
			return nil, err
		}
		if err = c.await(ctx, k.ask, fmt.Sprintf(k.proof, c.cmd.Process.Pid)); err == nil {
			return c, nil
		}
		c.stop()
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
	return nil, err
}

func launchChild(k kind, dir string) (*child, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	home, err := os.MkdirTemp(dir, k.program)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	c := &child{kind: k, addr: addr, log: log.Name(), cmd: exec.Command(k.program, k.args(port)...), exited: make(chan struct{})}
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr, c.cmd.SysProcAttr = home, log, log, childAttributes()
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // how it ended is of no interest: stop kills it
		close(c.exited)
	}()
	return c, nil
}

// await asks the server one line again and again until the answer holds a line that is wanted.
func (c *child) await(ctx context.Context, ask, want string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for !c.answers(ask, want) {
		select {
		case <-c.exited:
			out, _ := os.ReadFile(c.log)
			if strings.Contains(string(out), "ddress already in use") {
				return errPortTaken
			}
			return fmt.Errorf("%s ended at once:\n%s", c.program, out)
		case <-ctx.Done():
			return fmt.Errorf("%s at %s doesn't answer: %w", c.program, c.addr, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
	return nil
}

func (c *child) answers(ask, want string) bool {
	conn, err := net.DialTimeout("tcp", c.addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprintf(conn, "%s\r\n", ask); err != nil {
		return false
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); { // "" and "END" are the last lines of a Redis and a Memcached
		switch lines.Text() {
		case want:
			return true
		case "", "END":
			return false
		}
	}
	return false
}

// stop kills the server by its own process id, for nothing on it is worth saving, and waits until it has ended.
func (c *child) stop() {
	_ = c.cmd.Process.Kill() // os.ErrProcessDone if it has ended
	<-c.exited
}
