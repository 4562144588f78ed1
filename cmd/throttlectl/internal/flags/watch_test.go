package flags_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
)

func TestFlagWatchFile(t *testing.T) {
	t.Parallel()
	for _, format := range []struct{ golden, json string }{{"watch.txt", "--json=false"}, {"watch.json", "--json"}} {
		path := flags(t, stored)
		s := clitest.Start(t, "flag", "watch", "use-redis", "--file", path, "--refresh", "5ms", format.json)
		s.Await(&s.Stdout, "12.5")
		for i, args := range [][]string{
			{"set", "use-redis", "25"},
			{"kill", "use-redis"},
			{"set", "use-redis", "50"}, // nothing applies differently, but the version is another
			{"revive", "use-redis"},
		} {
			clitest.Succeed(t, append([]string{"flag", "--file", path}, args...)...)
			for deadline := time.Now().Add(fixture.Soon); strings.Count(s.Stdout.String(), "\n") < i+2; time.Sleep(2 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%v isn't seen: %q", args, s.Stdout.String())
				}
			}
		}
		if code := s.End(); code != cli.ExitOK || s.Stderr.String() != "" {
			t.Errorf("exit code %d, stderr %q", code, s.Stderr.String())
		}
		fixture.Golden(t, format.golden, fixture.Steady(s.Stdout.String()))
		if strings.HasSuffix(format.golden, ".json") {
			var last struct {
				Time    time.Time
				Percent float64
				Version uint64
			}
			lines := strings.Split(strings.TrimSpace(s.Stdout.String()), "\n")
			err := json.Unmarshal([]byte(lines[len(lines)-1]), &last)
			if err != nil || last.Percent != 50 || time.Since(last.Time) > time.Minute || last.Version < 1e11 {
				t.Errorf("%+v, %v", last, err)
			}
		}
	}
}

// A flag that isn't there is reported, and awaited.
func TestFlagWatchWaits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flags.json")
	s := clitest.Start(t, "flag", "watch", "use-redis", "--file", path, "--refresh", "5ms")
	s.Await(&s.Stderr, "throttlectl: featureflag: flag \"use-redis\": ")
	clitest.Succeed(t, "flag", "set", "use-redis", "25", "--file", path)
	s.Await(&s.Stdout, " 25% version ")
	if code := s.End(); code != cli.ExitOK {
		t.Errorf("exit code %d", code)
	}
}

// A watch whose output can't be written ends by itself.
func TestFlagWatchEndsWithItsReader(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	r, w := io.Pipe()
	r.CloseWithError(gone)
	var stderr fixture.Buffer
	code := make(chan int, 1)
	path := flags(t, stored)
	go func() {
		code <- root.Run(t.Context(), cli.Streams{In: os.Stdin, Out: w, ErrOut: &stderr}, []string{"flag", "watch", "use-redis", "--file", path, "--refresh", "5ms"})
	}()
	select {
	case got := <-code:
		if got != cli.ExitFailure || stderr.String() != "throttlectl: gone\n" {
			t.Errorf("exit code %d, stderr %q", got, stderr.String())
		}
	case <-time.After(fixture.Soon):
		t.Errorf("still running after %v", fixture.Soon)
	}
}
