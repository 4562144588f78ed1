//go:build unix

package router_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/router"
)

// within fails the test if something takes for ever.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// TestTopologyFileMustBeOne: what isn't a file, or is too large for a topology, is refused without waiting for it.
func TestTopologyFileMustBeOne(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		make  func(path string) error
		field string
	}{
		"a pipe":      {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "file"},
		"a directory": {func(path string) error { return os.Mkdir(path, 0o700) }, "file"},
		"a large file": {func(path string) error {
			if err := os.WriteFile(path, file(2, 2), 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 16<<20+1)
		}, "size"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var events log
			var err error
			p := newPlant()
			r, err := router.Open(topo(1, 1), router.Config{Node: p.node, OnEvent: events.add})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "groups.json")
			if err := test.make(path); err != nil {
				t.Fatal(err)
			}
			within(t, "LoadTopology", func() { _, err = router.LoadTopology(path) })
			if got := refusedFields(err); !slices.Equal(got, []string{test.field}) {
				t.Errorf("LoadTopology refuses %q: %v", got, err)
			}
			within(t, "WatchFile", func() { err = r.WatchFile(path) })
			if got := refusedFields(err); !slices.Equal(got, []string{test.field}) {
				t.Errorf("WatchFile refuses %q: %v", got, err)
			}

			good := path + ".good"
			if err := os.WriteFile(good, file(1, 1), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := r.WatchFile(good); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(good), test.make(good)); err != nil {
				t.Fatal(err)
			}
			await(t, "an event", func() bool {
				return slices.ContainsFunc(events.all(), func(e router.Event) bool {
					return slices.Equal(refusedFields(e.Err), []string{test.field})
				})
			})
			within(t, "Close", func() { _ = r.Close() })
		})
	}
}
