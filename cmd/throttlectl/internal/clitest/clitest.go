// Package clitest runs the whole program in tests.
package clitest

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
)

// outcome is the result of a run of the program.
type outcome struct {
	Code           int
	Stdout, Stderr string
}

// Execute runs the program to its end, without an environment.
func Execute(t testing.TB, args ...string) outcome {
	t.Helper()
	return ExecuteIn(t, nil, args...)
}

// ExecuteIn runs the program to its end, in an environment.
func ExecuteIn(t testing.TB, environment map[string]string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*fixture.Soon) // a watch that is not refused would never end
	defer cancel()
	var stdout, stderr bytes.Buffer
	getenv := func(name string) string { return environment[name] }
	code := root.Run(ctx, cli.Streams{In: os.Stdin, Out: &stdout, ErrOut: &stderr, Getenv: getenv}, args)
	return outcome{code, stdout.String(), stderr.String()}
}

// Succeed runs the program and wants exit code 0 and nothing on stderr.
func Succeed(t testing.TB, args ...string) string {
	t.Helper()
	got := Execute(t, args...)
	if got.Code != cli.ExitOK || got.Stderr != "" {
		t.Fatalf("%v: exit code %d, stderr %q", args, got.Code, got.Stderr)
	}
	return got.Stdout
}

// Fail runs the program and wants an exit code, nothing on stdout, and one error on stderr that contains a text.
func Fail(t testing.TB, code int, text string, args ...string) {
	t.Helper()
	got := Execute(t, args...)
	if got.Code != code || got.Stdout != "" {
		t.Errorf("%q: exit code %d, want %d; stdout %q, stderr %q", args, got.Code, code, got.Stdout, got.Stderr)
	}
	if !strings.Contains(got.Stderr, text) || strings.Count(got.Stderr, "throttlectl: ") != 1 {
		t.Errorf("%q: stderr %q, want %q in it, once", args, got.Stderr, text)
	}
}

// session is a run of the program until it is interrupted.
type session struct {
	t              testing.TB
	interrupt      context.CancelFunc
	code           chan int
	Stdout, Stderr fixture.Buffer
}

// Start runs the program until the test interrupts it or ends.
func Start(t testing.TB, args ...string) *session {
	ctx, cancel := context.WithCancel(t.Context())
	s := &session{t: t, interrupt: cancel, code: make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.code <- root.Run(ctx, cli.Streams{In: os.Stdin, Out: &s.Stdout, ErrOut: &s.Stderr}, args)
	}()
	t.Cleanup(func() { // before its servers stop
		cancel()
		<-ended
	})
	return s
}

// Await waits until an output contains a text.
func (s *session) Await(b *fixture.Buffer, text string) {
	s.t.Helper()
	for deadline := time.Now().Add(fixture.Soon); !strings.Contains(b.String(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("no %q within %v: stdout %q, stderr %q", text, fixture.Soon, s.Stdout.String(), s.Stderr.String())
		}
	}
}

// End interrupts the program and returns its exit code.
func (s *session) End() int {
	s.t.Helper()
	s.interrupt()
	return s.wait()
}

func (s *session) wait() int {
	s.t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(fixture.Soon):
		s.t.Fatalf("still running after %v", fixture.Soon)
		return -1
	}
}
