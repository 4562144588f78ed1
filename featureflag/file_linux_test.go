package featureflag_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/sluice-go/sluice/featureflag"
)

// unprivileged calls f on a thread to which the permissions of files apply, as they don't to root. The thread ends with
// the goroutine that is locked to it.
func unprivileged(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			const nobody = 65534
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0) // syscall.Setfsuid is for all threads
		}
		f()
	}()
	<-done
}

// guarded is a source that is read without privileges.
type guarded struct{ featureflag.Source }

func (g guarded) Load(ctx context.Context, name string) (v featureflag.Value, err error) {
	unprivileged(func() { v, err = g.Source.Load(ctx, name) })
	return v, err
}

func TestFileWithoutPermission(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "flags.json")
	writeFile(t, path, flags(10, 1))
	chmod := func(path string, mode fs.FileMode) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(path, 0o644)
	chmod(dir, 0o755)
	chmod(filepath.Dir(dir), 0o755)
	f := open(t, featureflag.Config{Name: "x", Source: guarded{featureflag.File(path)}, Refresh: quick})
	awaitPercent(t, f, 10)
	chmod(path, 0)
	s := await(t, f, "the denial", func(s featureflag.State) bool { return s.Err != nil })
	if !errors.Is(s.Err, fs.ErrPermission) || s.Percent != 10 {
		t.Errorf("%+v, want the last good value and a denial", s)
	}
	chmod(path, 0o644)
	must(t)(featureflag.Set(t.Context(), featureflag.File(path), "x", 20))
	awaitPercent(t, f, 20)

	chmod(dir, 0o555)
	defer chmod(dir, 0o755)
	unprivileged(func() {
		if _, err := featureflag.Set(t.Context(), featureflag.File(path), "x", 30); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Set where nothing may be written: %v", err)
		}
	})
	if v, err := featureflag.File(path).Load(t.Context(), "x"); err != nil || v.Percent != 20 {
		t.Errorf("%v, %v", v, err)
	}
}
