package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/router"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most of them wait for servers; the command line may say otherwise
	os.Exit(m.Run())
}

var update = flag.Bool("update", false, "write the golden files in testdata anew")

// soon is long on the busiest machine.
const soon = 10 * time.Second

// outcome is what a run of the program leaves.
type outcome struct {
	code           int
	stdout, stderr string
}

// execute runs the program to its end.
func execute(t testing.TB, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon) // or a watch that should have been refused would go on
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, Streams{os.Stdin, &stdout, &stderr}, args)
	return outcome{code, stdout.String(), stderr.String()}
}

// succeed runs the program and wants exit code 0 and nothing on stderr.
func succeed(t testing.TB, args ...string) string {
	t.Helper()
	got := execute(t, args...)
	if got.code != exitOK || got.stderr != "" {
		t.Fatalf("%v: exit code %d, stderr %q", args, got.code, got.stderr)
	}
	return got.stdout
}

// fail runs the program and wants an exit code, nothing on stdout, and one report on stderr that holds a text.
func fail(t testing.TB, code int, text string, args ...string) {
	t.Helper()
	got := execute(t, args...)
	if got.code != code || got.stdout != "" {
		t.Errorf("%q: exit code %d, want %d; stdout %q, stderr %q", args, got.code, code, got.stdout, got.stderr)
	}
	if !strings.Contains(got.stderr, text) || strings.Count(got.stderr, "throttlectl: ") != 1 {
		t.Errorf("%q: stderr %q, want %q in it, once", args, got.stderr, text)
	}
}

// golden compares an output with a file in testdata.
func golden(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

var (
	versions = regexp.MustCompile(`\b\d{12}\b`)
	times    = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
)

// steady replaces what is different in every run: the versions that package featureflag makes of the time, and times.
// It keeps the width of versions, by which tables are aligned.
func steady(s string) string {
	return times.ReplaceAllString(versions.ReplaceAllString(s, "VERSION_TIME"), "TIME")
}

// session is a run of the program that goes on until it is interrupted.
type session struct {
	t              testing.TB
	interrupt      context.CancelFunc
	code           chan int
	stdout, stderr buffer
}

func start(t testing.TB, args ...string) *session {
	ctx, cancel := context.WithCancel(t.Context())
	s := &session{t: t, interrupt: cancel, code: make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.code <- run(ctx, Streams{os.Stdin, &s.stdout, &s.stderr}, args)
	}()
	t.Cleanup(func() { // before the servers that it talks to are gone
		cancel()
		<-ended
	})
	return s
}

// await waits until there is a text in an output.
func (s *session) await(b *buffer, text string) {
	s.t.Helper()
	for deadline := time.Now().Add(soon); !strings.Contains(b.String(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("no %q within %v: stdout %q, stderr %q", text, soon, s.stdout.String(), s.stderr.String())
		}
	}
}

// end interrupts the program and returns its exit code.
func (s *session) end() int {
	s.t.Helper()
	s.interrupt()
	return s.wait()
}

func (s *session) wait() int {
	s.t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(soon):
		s.t.Fatalf("still running after %v", soon)
		return -1
	}
}

// buffer is a bytes.Buffer that can be read while it is written.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// topologyFile writes a topology and returns its path.
func topologyFile(t testing.TB, topology router.Topology) string {
	t.Helper()
	text, err := json.Marshal(topology)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "groups.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// threeGroups is a topology whose servers need not be there.
var threeGroups = router.Topology{
	Epoch: 2,
	Groups: []router.Group{
		{Name: "eu-1", Primary: "10.0.0.1:6379", Replicas: []string{"10.0.0.2:6379", "10.0.0.3:6379"}},
		{Name: "eu-2", Weight: 2, Sentinels: []string{"10.0.1.1:26379"}, Master: "main"},
		{Name: "eu-3", Cluster: []string{"10.0.2.1:6379"}},
	},
	Previous: &router.Topology{Epoch: 1, Groups: []router.Group{{Name: "eu-1", Primary: "10.0.0.1:6379"}}},
}
