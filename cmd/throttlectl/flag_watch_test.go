package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFlagWatchFile(t *testing.T) {
	t.Parallel()
	for _, format := range []struct{ golden, json string }{{"watch.txt", "--json=false"}, {"watch.json", "--json"}} {
		path := flags(t, stored)
		s := start(t, "flag", "watch", "use-redis", "--file", path, "--refresh", "5ms", format.json)
		s.await(&s.stdout, "12.5")
		for i, args := range [][]string{
			{"set", "use-redis", "25"},
			{"kill", "use-redis"},
			{"set", "use-redis", "50"}, // nothing applies differently, but the version is another
			{"revive", "use-redis"},
		} {
			succeed(t, append([]string{"flag", "--file", path}, args...)...)
			for deadline := time.Now().Add(soon); strings.Count(s.stdout.String(), "\n") < i+2; time.Sleep(2 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%v isn't seen: %q", args, s.stdout.String())
				}
			}
		}
		if code := s.end(); code != exitOK || s.stderr.String() != "" {
			t.Errorf("exit code %d, stderr %q", code, s.stderr.String())
		}
		golden(t, format.golden, steady(s.stdout.String()))
		if strings.HasSuffix(format.golden, ".json") {
			var last flagEvent
			lines := strings.Split(strings.TrimSpace(s.stdout.String()), "\n")
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
	s := start(t, "flag", "watch", "use-redis", "--file", path, "--refresh", "5ms")
	s.await(&s.stderr, "throttlectl: featureflag: flag \"use-redis\": ")
	succeed(t, "flag", "set", "use-redis", "25", "--file", path)
	s.await(&s.stdout, " 25% version ")
	if code := s.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A watch whose output can't be written ends by itself.
func TestFlagWatchEndsWithItsReader(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	r, w := io.Pipe()
	r.CloseWithError(gone)
	var stderr buffer
	code := make(chan int, 1)
	path := flags(t, stored)
	go func() {
		code <- run(t.Context(), Streams{os.Stdin, w, &stderr}, []string{"flag", "watch", "use-redis", "--file", path, "--refresh", "5ms"})
	}()
	select {
	case got := <-code:
		if got != exitFailure || stderr.String() != "throttlectl: gone\n" {
			t.Errorf("exit code %d, stderr %q", got, stderr.String())
		}
	case <-time.After(soon):
		t.Errorf("still running after %v", soon)
	}
}
