package featureflag

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-go/sluice/internal/smallfile"
)

const maxFile = 1 << 20

// File is a JSON file of any number of flags, at most 1 MiB:
//
//	{
//	  "use-redis": {"percent": 12.5, "version": 179012345678, "killed": false},
//	  "new-limits": {"percent": 100, "version": 179012340000}
//	}
//
// Percent is 0 to 100. Version is 1 to 2^38-1, and an edit by hand must raise it; [Set], [Kill] and [Revive] do.
// Killed may be missing. A file that is wrong in any part, has fields beyond these or a name twice, is ignored as a
// whole, so one that is half-written does no harm.
//
// The file is read at every [Config.Refresh], which costs less than being wrong about times of modification. It may be
// replaced, removed and mounted anew at any time.
func File(path string) Source { return file(path) }

type file string

func (f file) validate() error {
	if f == "" {
		return invalid("Source: path", `""`, "must not be empty")
	}
	return nil
}

func (f file) Load(_ context.Context, name string) (Value, error) {
	flags, err := f.read()
	if err != nil {
		return Value{}, err
	}
	v, ok := flags[name]
	if !ok {
		return Value{}, wrapPath(string(f), ErrNotFound)
	}
	return v, nil
}

func (f file) read() (map[string]Value, error) {
	data, err := smallfile.Read(string(f), maxFile, func(field, value, bound string) error { return invalid(field, value, "%s", bound) })
	if err != nil {
		return nil, err // it names the path
	}
	flags, err := parseFlags(data)
	return flags, wrapPath(string(f), err)
}

func wrapPath(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// set writes a new file beside the old one and renames it, so that a reader sees the old or the new one. A lock keeps
// two writers from losing one's change, and from giving two changes the same version.
func (f file) set(ctx context.Context, name string, c change) (Value, error) {
	path, err := follow(string(f)) // replace the file, not a link to it
	if err != nil {
		return Value{}, err
	}
	unlock, err := lock(ctx, filepath.Dir(path))
	if err != nil {
		return Value{}, err
	}
	defer unlock()

	flags, err := file(path).read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		flags = make(map[string]Value)
	case err != nil:
		return Value{}, err // nothing is written over what isn't understood
	}
	v, ok := flags[name]
	if v, err = c.apply(v, ok, time.Now()); err != nil {
		return Value{}, wrapPath(path, err)
	}
	flags[name] = v
	return v, replace(path, formatFlags(flags))
}

// follow returns where a path leads, be there a file or not, as filepath.EvalSymlinks only does if there is.
func follow(path string) (string, error) {
	for range maxLinks {
		dir, name := filepath.Split(path)
		dir, err := filepath.EvalSymlinks(cmp.Or(dir, "."))
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, name)
		target, err := os.Readlink(path)
		if err != nil { // it is no link
			return path, nil
		}
		if path = target; !filepath.IsAbs(target) { // not joined: ".." is for the system, which knows where links before it lead
			path = dir + string(filepath.Separator) + target
		}
	}
	return path, nil // reading it fails with too many links
}

const maxLinks = 40 // as in Linux

// apply changes the stored value.
func (c change) apply(v Value, found bool, now time.Time) (Value, error) {
	if c.percent != nil {
		v.Percent = *c.percent
	}
	if c.killed != nil {
		if !found && !*c.killed {
			return Value{}, ErrNotFound
		}
		v.Killed = *c.killed
	}
	v.Version = max(v.Version+1, uint64(max(now.UnixMilli()/10, 0)))
	if v.Version > maxGeneration {
		return Value{}, invalid("version", v.Version, "must be at most %d: is the clock right?", uint64(maxGeneration))
	}
	return v, nil
}

// replace puts data in the place of a file, and keeps who may read and write it.
func replace(path string, data []byte) (err error) {
	old, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = w.Close() // a second time, where the first one failed
			_ = os.Remove(w.Name())
		}
	}()
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := grant(w, path, old); err != nil {
		return err
	}
	if err := w.Sync(); err != nil { // or a crash could leave the new name with nothing in it
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.Rename(w.Name(), path)
}

// grant gives a new file the owner, mode and access list of the old one. If there is none, all may read it.
func grant(w *os.File, path string, old fs.FileInfo) error {
	if old == nil {
		return w.Chmod(0o644)
	}
	if err := keepOwner(w, old); err != nil {
		return wrapPath(path, err)
	}
	if err := w.Chmod(old.Mode().Perm()); err != nil {
		return err
	}
	return keepAccessList(w, path)
}
