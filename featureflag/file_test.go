//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package featureflag_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// flags is the text of a file with one flag.
func flags(percent float64, version uint64) string {
	return fmt.Sprintf(`{"x": {"percent": %v, "version": %d}}`, percent, version)
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flags.json")
	f := open(t, featureflag.Config{Name: "x", Source: featureflag.File(path), Refresh: quick})
	fails := func(what string, is func(error) bool) {
		t.Helper()
		await(t, f, what, func(s featureflag.State) bool {
			return s.Err != nil && is(s.Err) && strings.HasPrefix(s.Err.Error(), `featureflag: flag "x": `)
		})
	}
	kept := func(what string, percent float64, is func(error) bool) {
		t.Helper()
		fails(what, is)
		if s := f.State(); s.Percent != percent || s.Reason != featureflag.ReasonSource {
			t.Errorf("%s: %+v, want the last good value", what, s)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	missing := func(err error) bool { return errors.Is(err, fs.ErrNotExist) && strings.Contains(err.Error(), path) }

	fails("a file that was never there", missing)
	writeFile(t, path, flags(10, 1))
	if err := f.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitPercent(t, f, 10)

	writeFile(t, path, flags(20, 2)[:25])
	kept("half a file", 10, func(err error) bool { return strings.Contains(err.Error(), "unexpected end of JSON input") })
	writeFile(t, path, flags(20, 2))
	awaitPercent(t, f, 20)
	writeFile(t, path, "")
	kept("an empty file", 20, func(err error) bool { return strings.Contains(err.Error(), "unexpected end of JSON input") })
	kept("a removed file", 20, missing)
	writeFile(t, path, strings.Replace(flags(30, 3), "x", "y", 1))
	kept("a file without the flag", 20, func(err error) bool {
		return errors.Is(err, featureflag.ErrNotFound) && strings.Contains(err.Error(), path)
	})
	writeFile(t, path, flags(30, 2))
	kept("a change without a larger version", 20, func(err error) bool { return errors.Is(err, featureflag.ErrVersion) })
	writeFile(t, path, strings.Repeat(" ", 1<<20)+flags(30, 3))
	kept("a large file", 20, func(err error) bool { return strings.Contains(err.Error(), "must be at most 1048576 bytes") })
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	kept("a directory", 20, func(err error) bool { return strings.Contains(err.Error(), "must be a regular file") })
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	kept("a pipe", 20, func(err error) bool { return strings.Contains(err.Error(), "must be a regular file") })
	if err := os.Symlink(path, path); err != nil {
		t.Fatal(err)
	}
	kept("a link to itself", 20, func(err error) bool { return errors.Is(err, syscall.ELOOP) })

	// Replaced by rename, with the time and the size of the old one.
	writeFile(t, path, flags(30, 3))
	awaitPercent(t, f, 30)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	next := path + ".next"
	writeFile(t, next, flags(40, 4))
	if err := errors.Join(os.Chtimes(next, info.ModTime(), info.ModTime()), os.Rename(next, path)); err != nil {
		t.Fatal(err)
	}
	awaitPercent(t, f, 40)
}

func TestSetFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "flags.json")
	src := featureflag.File(path)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: quick})

	before := uint64(time.Now().UnixMilli() / 10)
	first := must(t)(featureflag.Set(t.Context(), src, "x", 12.345))
	if first.Percent != 12.345 || first.Version < before || first.Version > uint64(time.Now().UnixMilli()/10) || first.Killed {
		t.Errorf("stored %+v, want a version from %d to now", first, before)
	}
	if s := awaitPercent(t, f, 12.345); s.Generation != first.Version || s.Version != first.Version<<14 {
		t.Errorf("%+v, want generation %d", s, first.Version)
	}
	must(t)(featureflag.Set(t.Context(), src, "another", math.Copysign(0, -1)))
	killed := must(t)(featureflag.Kill(t.Context(), src, "x"))
	if !killed.Killed || killed.Percent != 12.345 || killed.Version <= first.Version {
		t.Errorf("killed: %+v after %+v", killed, first)
	}
	await(t, f, "the kill", func(s featureflag.State) bool { return s.Reason == featureflag.ReasonKilled && s.Percent == 0 })
	raised := must(t)(featureflag.Set(t.Context(), src, "x", 50))
	if !raised.Killed || raised.Percent != 50 || raised.Version <= killed.Version {
		t.Errorf("raised while killed: %+v after %+v", raised, killed)
	}
	await(t, f, "the raise", func(s featureflag.State) bool { return s.Generation == raised.Version && s.Percent == 0 })
	revived := must(t)(featureflag.Revive(t.Context(), src, "x"))
	if revived.Killed || revived.Percent != 50 || revived.Version <= raised.Version {
		t.Errorf("revived: %+v after %+v", revived, raised)
	}
	awaitPercent(t, f, 50)
	same := must(t)(featureflag.Set(t.Context(), src, "x", 50)) // the same again heals a file with an older version
	if same.Version <= revived.Version {
		t.Errorf("version %d after %d", same.Version, revived.Version)
	}

	fresh := must(t)(featureflag.Kill(t.Context(), src, "not-there"))
	if !fresh.Killed || fresh.Percent != 0 || fresh.Version < before {
		t.Errorf("a kill of what isn't there: %+v", fresh)
	}
	if _, err := featureflag.Revive(t.Context(), src, "nor-that"); !errors.Is(err, featureflag.ErrNotFound) {
		t.Errorf("Revive of what isn't there: %v", err)
	}
	if v, err := src.Load(t.Context(), "another"); err != nil || v.Percent != 0 || math.Signbit(v.Percent) {
		t.Errorf("the other flag is %v, %v", v, err)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "\n") != 5 || !strings.HasPrefix(string(text), "{\n  \"another\": {\"percent\": 0, ") {
		t.Errorf("the file, one flag a line and sorted: %v\n%s", err, text)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

func TestSetFileKeeps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "flags.json"), filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	src := featureflag.File(link)
	writeFile(t, path, flags(10, 1<<38-2))
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	must(t)(featureflag.Set(t.Context(), src, "x", 20))
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode of the file: %v, %v", info.Mode(), err)
	}
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if v, err := src.Load(t.Context(), "x"); err != nil || v != value(20, 1<<38-1) {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := featureflag.Set(t.Context(), src, "x", 30); err == nil || !strings.Contains(err.Error(), "is the clock right?") {
		t.Errorf("no version left: %v", err)
	}
	writeFile(t, path, "{")
	if _, err := featureflag.Set(t.Context(), src, "x", 30); err == nil {
		t.Error("Set wrote over what it didn't understand")
	}
	if text, _ := os.ReadFile(path); string(text) != "{" {
		t.Errorf("the file is now %s", text)
	}
	if _, err := featureflag.Set(t.Context(), featureflag.File(filepath.Join(dir, "no", "dir")), "x", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Set in a directory that isn't there: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := featureflag.Set(t.Context(), featureflag.File(filepath.Join(dir, "d")), "x", 1); err == nil {
		t.Error("Set replaced a directory")
	}
	if names, _ := os.ReadDir(dir); len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
}

// A link whose target isn't there yet stays a link, and the target is made.
func TestSetFileThroughALink(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		path  string            // of the flags
		links map[string]string // link to target; all lead to real/flags.json
	}{
		"relative":           {"a", map[string]string{"a": "real/flags.json"}},
		"absolute":           {"a", map[string]string{"a": "DIR/real/flags.json"}},
		"link to a link":     {"a", map[string]string{"a": "link/b", "link": "real", "real/b": "flags.json"}},
		"in a linked folder": {"link/b", map[string]string{"link": "real/sub", "real/sub/b": "../flags.json"}},
		"up through a link":  {"a", map[string]string{"a": "link/../flags.json", "link": "real/sub"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "real", "sub"), 0o700); err != nil {
				t.Fatal(err)
			}
			for link, target := range tt.links {
				if err := os.Symlink(strings.Replace(target, "DIR", dir, 1), filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, tt.path)
			for percent := range 2 { // when it isn't there, and when it is
				must(t)(featureflag.Set(t.Context(), featureflag.File(path), "x", float64(percent)))
				if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
					t.Errorf("the link has mode %v now, %v", info.Mode(), err)
				}
				v, err := featureflag.File(filepath.Join(dir, "real", "flags.json")).Load(t.Context(), "x")
				if err != nil || v.Percent != float64(percent) {
					t.Errorf("the target has %v, %v", v, err)
				}
			}
		})
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("nowhere/flags.json", link); err != nil {
		t.Fatal(err)
	}
	if _, err := featureflag.Set(t.Context(), featureflag.File(link), "x", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Set through a link to no folder: %v", err)
	}
}

// Writers of several flags in one file lose nothing, versions are never given twice, and a reader never sees half.
func TestSetFileTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flags.json")
	writeFile(t, path, flags(0, 1))
	const writers, rounds = 4, 10
	versions := make(chan uint64, writers*rounds)
	stop := make(chan struct{})
	var readers, all sync.WaitGroup
	readers.Go(func() {
		var last uint64
		for {
			v, err := featureflag.File(path).Load(context.Background(), "x")
			if err != nil || v.Version < last {
				t.Errorf("read %v after version %d: %v", v, last, err)
				return
			}
			last = v.Version
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for i := range writers {
		src := featureflag.File(path)
		all.Go(func() {
			for n := range rounds {
				must(t)(featureflag.Set(t.Context(), src, fmt.Sprint("own-", i), float64(n)))
				versions <- must(t)(featureflag.Set(t.Context(), src, "x", float64(n))).Version
			}
		})
	}
	all.Wait()
	close(stop)
	readers.Wait()
	close(versions)
	seen := make(map[uint64]bool)
	for v := range versions {
		if seen[v] {
			t.Errorf("version %d was given twice", v)
		}
		seen[v] = true
	}
	for i := range writers {
		if v, err := featureflag.File(path).Load(t.Context(), fmt.Sprint("own-", i)); err != nil || v.Percent != rounds-1 {
			t.Errorf("flag of writer %d: %v, %v", i, v, err)
		}
	}
}

func TestSetFileWaitsForOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil { // as another process would
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	src := featureflag.File(filepath.Join(dir, "flags.json"))
	if _, err := featureflag.Set(ctx, src, "x", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Set while another writes: %v", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	must(t)(featureflag.Set(t.Context(), src, "x", 1))
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flags.json")
	var none context.Context
	_, err := featureflag.Set(none, featureflag.File(""), "a b", math.NaN())
	const want = `featureflag: Name = "a b": must be 1 to 128 of A-Z a-z 0-9 _ - . : /
featureflag: Source: path = "": must not be empty
featureflag: ctx = nil: must not be nil
featureflag: percent = NaN: must be 0 to 100`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if _, err := featureflag.Set(t.Context(), featureflag.File(path), "x", 100.001); !errors.As(err, new(*featureflag.Error)) {
		t.Errorf("Set to 100.001 %%: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
	for _, src := range []featureflag.Source{featureflag.Static(1), &fake{}} {
		if _, err := featureflag.Kill(t.Context(), src, "x"); !errors.Is(err, featureflag.ErrReadOnly) {
			t.Errorf("Kill in %T: %v", src, err)
		}
	}
	if _, err := featureflag.Kill(t.Context(), nil, "x"); !errors.As(err, new(*featureflag.Error)) {
		t.Errorf("Kill in no source: %v", err)
	}
}
