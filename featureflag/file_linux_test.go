package featureflag_test

import (
	"context"
	"encoding/binary"
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

// TestSetFileKeepsOwner: an application that reads the file as its owner, by its group or by an access list still does
// after a change by root. Who can't keep that changes nothing.
func TestSetFileKeepsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "flags.json")
	writeFile(t, path, flags(10, 1))
	uid, gid := os.Getuid(), os.Getgid() // others can't give a file away
	if uid == 0 {
		uid, gid = 1000, 1001
	}
	if err := errors.Join(os.Chmod(path, 0o640), os.Chown(path, uid, gid)); err != nil {
		t.Fatal(err)
	}
	list := readableBy(1002)
	if err := syscall.Setxattr(path, "system.posix_acl_access", list, 0); err != nil && !errors.Is(err, syscall.ENOTSUP) {
		t.Fatal(err)
	} else if err != nil {
		list = nil // the file system has none
	}
	check := func(when string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		is := info.Sys().(*syscall.Stat_t)
		if int(is.Uid) != uid || int(is.Gid) != gid || info.Mode().Perm() != 0o640 {
			t.Errorf("%s the file is of %d:%d %v, want %d:%d -rw-r-----", when, is.Uid, is.Gid, info.Mode(), uid, gid)
		}
		got := make([]byte, 256)
		n, err := syscall.Getxattr(path, "system.posix_acl_access", got)
		if list != nil && (err != nil || string(got[:n]) != string(list)) {
			t.Errorf("%s its access list is %x, %v, want %x", when, got[:max(n, 0)], err, list)
		}
	}
	must(t)(featureflag.Kill(t.Context(), featureflag.File(path), "x"))
	check("after a kill")

	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	readable := readableBy(65534)
	if os.Getuid() != 0 || list == nil || syscall.Setxattr(path, "system.posix_acl_access", readable, 0) != nil {
		return // nobody to be refused
	}
	list = readable
	unprivileged(func() {
		_, err := featureflag.Revive(t.Context(), featureflag.File(path), "x")
		var refused *featureflag.Error
		if !errors.As(err, &refused) || refused.Field != "owner" {
			t.Errorf("a change by somebody who can't keep the owner: %v, want a refusal", err)
		}
	})
	check("after a refused change")
	if v, err := featureflag.File(path).Load(t.Context(), "x"); err != nil || !v.Killed {
		t.Errorf("after a refused change: %v, %v", v, err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// readableBy lets one more user read: mode 0640 and u:user:r, as the kernel stores it.
func readableBy(user uint32) []byte {
	list := []byte{2, 0, 0, 0}
	const none = 1<<32 - 1
	for _, e := range []struct {
		tag, permissions uint16
		id               uint32
	}{{1, 6, none}, {2, 4, user}, {4, 0, none}, {16, 4, none}, {32, 0, none}} { // owner, user, group, mask, others
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.permissions)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	return list
}
