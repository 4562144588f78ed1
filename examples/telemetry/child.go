package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	startTime = 20 * time.Second // for a program to answer
	pollEvery = 10 * time.Millisecond
)

// kind is how to run a program, and how to know that it is ours who answers: another one may have been faster to take the
// port.
type kind struct {
	program string
	args    func(port, dir string) []string
	ready   func(c *child) bool
}

// child is one program that we run.
type child struct {
	kind
	addr   string
	dir    string // its own
	log    string // file with what it printed
	cmd    *exec.Cmd
	exited chan struct{} // closed once it is waited for
}

var errPortTaken = errors.New("another process took its port")

// startChild runs a program on a free port of the loopback interface, its data below dir, and waits until it is ready.
func startChild(ctx context.Context, k kind, dir string) (*child, error) {
	for tries := 0; ; tries++ {
		addr, err := freeAddress()
		if err != nil {
			return nil, err
		}
		c := &child{kind: k, addr: addr}
		if c.dir, err = os.MkdirTemp(dir, filepath.Base(k.program)); err != nil {
			return nil, err
		}
		if err = c.start(ctx); err == nil {
			return c, nil
		}
		if !errors.Is(err, errPortTaken) || tries == 5 {
			return nil, err
		}
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// start runs it, again after it was stopped, too.
func (c *child) start(ctx context.Context) error {
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	_, port, _ := net.SplitHostPort(c.addr)
	cmd, exited := exec.Command(c.program, c.args(port, c.dir)...), make(chan struct{})
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = c.dir, log, log, childAttributes()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd, c.log, c.exited = cmd, log.Name(), exited
	go func() {
		_ = cmd.Wait() // how it ended is of no interest: stop kills it
		close(exited)
	}()
	if err := c.await(ctx, c.ready); err != nil {
		c.stop()
		return err
	}
	return nil
}

// await waits until something is so, or the child has ended.
func (c *child) await(ctx context.Context, so func(*child) bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for !so(c) {
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

// stop kills it by its own process id, for nothing of it is worth saving, and waits until it has ended.
func (c *child) stop() {
	_ = c.cmd.Process.Kill() // os.ErrProcessDone if it has ended
	<-c.exited
}
