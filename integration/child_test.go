//go:build unix

package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// childEnv holds a job in JSON, in the environment of a process of this test binary that does that job and no tests.
const childEnv = "SLUICE_INTEGRATION_CHILD"

// job is what a child does: it asks for one all the time, with leases or on credit, and prints the decisions.
type job struct {
	Groups []router.Group
	Limit  string
	Batch  int64
	Slack  float64 // above 0: it asks on credit, without leases
	Among  int     // processes
	Pause  time.Duration
	Clock  string // file of the wall clock that it follows
	ByHost bool   // its Lease judges by that clock
}

// followClock makes the wall clock of this process follow a file, where a test can do that.
var followClock = func(file string) error { return errors.ErrUnsupported }

// child does the job if this process is a child.
func child() bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.run()
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	return true
}

// run asks until standard input ends, which it also does when the parent dies, and closes everything.
func (j *job) run() error {
	if j.Clock != "" {
		if err := followClock(j.Clock); err != nil {
			return err
		}
	}
	l, err := limit.Parse(j.Limit)
	if err != nil {
		return err
	}
	cfg := lease.Config{Batch: j.Batch, Steady: true, Processes: j.Among, Slack: j.Slack}
	if j.Slack > 0 {
		cfg.Batch = -1
	}
	if j.ByHost {
		cfg.Now = func() time.Time { return time.Now().Round(0) }
	}
	r, err := router.Open(router.Topology{Groups: j.Groups}, router.Config{Backend: patient})
	if err != nil {
		return err
	}
	ls, err := lease.New(r, cfg)
	if err != nil {
		return err
	}
	t, err := throttler.New(throttler.Config{
		Backend: ls, Policy: one(l), Failure: throttler.FailClosed, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for {
		d, err := t.Allow(context.Background(), "user:1")
		if err != nil {
			return err
		}
		fmt.Println(d.Allowed, d.At.UnixMicro(), d.ResetAt.UnixMicro(), d.Source) // not buffered: it is out before it may be killed
		select {
		case <-ended:
			if err := t.Close(); err != nil {
				return err
			}
			return ls.Close()
		case <-time.After(j.Pause):
		}
	}
}

// A process is a child that runs.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed once all that it printed is read

	mu        sync.Mutex // guards what follows
	decisions []childDecision
	denials   int // in a row, by now
	failed    string
}

// childDecision is a decision of a child process.
type childDecision struct {
	allowed   bool
	at, reset int64 // Unix microseconds
	source    string
}

func startChild(t *testing.T, j job) *process {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		_ = p.cmd.Wait()
	})
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var d childDecision
		line := lines.Text()
		_, err := fmt.Sscan(line, &d.allowed, &d.at, &d.reset, &d.source)
		p.mu.Lock()
		if err != nil {
			p.failed = line
		} else {
			p.decisions = append(p.decisions, d)
			if p.denials++; d.allowed {
				p.denials = 0
			}
		}
		p.mu.Unlock()
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// close lets the child close its lease and end.
func (p *process) close(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Error("the process doesn't end")
	}
}

// admitted is what the child was admitted so far, and its denials in a row.
func (p *process) admitted(t *testing.T) (admitted int64, denials int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != "" && !strings.Contains(p.failed, "PASS") {
		t.Fatalf("the process printed: %s", p.failed)
	}
	for _, d := range p.decisions {
		if d.allowed {
			admitted++
		}
	}
	return admitted, p.denials
}
