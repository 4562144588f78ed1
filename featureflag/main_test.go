package featureflag_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	_ "pgregory.net/rapid" // for its flags

	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/testtier"
)

// TestMain makes the random histories the same in every run (-rapid.seed and -rapid.checks ask for others), and looks
// for goroutines that outlive their flag.
func TestMain(m *testing.M) {
	if err := testtier.SetFlags("rapid.seed", "20260101", "rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

const (
	// soon is long before the next poll of a flag with Refresh: never, on the busiest machine.
	soon  = 10 * time.Second
	never = time.Hour
	quick = 5 * time.Millisecond // Refresh of what is polled
)

// open returns a flag that is closed with the test.
func open(t testing.TB, cfg featureflag.Config) *featureflag.Flag {
	t.Helper()
	f, err := featureflag.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return f
}

// at returns the state of a flag at a percentage.
func at(t fataler, name string, percent float64) featureflag.State {
	f, err := featureflag.New(featureflag.Config{Name: name, Source: featureflag.Static(percent)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return f.State()
}

type fataler interface{ Fatal(args ...any) }

// poll waits until ok.
func poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// await waits until ok accepts the flag's state.
func await(t testing.TB, f *featureflag.Flag, what string, ok func(featureflag.State) bool) featureflag.State {
	t.Helper()
	var s featureflag.State
	defer func() {
		if t.Failed() {
			t.Logf("the flag is %+v", s)
		}
	}()
	poll(t, what+" is seen", func() bool {
		s = f.State()
		return ok(s)
	})
	return s
}

func awaitPercent(t testing.TB, f *featureflag.Flag, percent float64) featureflag.State {
	t.Helper()
	return await(t, f, "the percentage", func(s featureflag.State) bool { return s.Percent == percent })
}

// notes are what callbacks were told.
type notes struct {
	mu    sync.Mutex // guards lines and errs
	lines []string
	errs  []error
}

func (n *notes) change(s featureflag.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf("%v%% %d+%d %s", s.Percent, s.Version>>14, s.Version&(1<<14-1), s.Reason))
}

func (n *notes) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines, n.errs = append(n.lines, err.Error()), append(n.errs, err)
}

// take returns what came since the last time.
func (n *notes) take() (lines []string, errs []error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines, errs = n.lines, n.errs
	n.lines, n.errs = nil, nil
	return lines, errs
}

// must returns what was written, or fails the test.
func must(t testing.TB) func(v featureflag.Value, err error) featureflag.Value {
	return func(v featureflag.Value, err error) featureflag.Value {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
