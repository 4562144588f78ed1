package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/smallfile"
	"github.com/sluice-go/sluice/internal/yamljson"
)

// Bounds of what is read. A file beyond them is not a configuration.
const (
	maxFile  = 16 << 20
	maxFiles = 1000
)

// Files are the configuration files of a folder: those that end in .yaml or .yml, in the order of their names. Folders in it, and
// files that begin with a period, are left alone.
type Files struct {
	dir   string
	cfg   FilesConfig
	set   *Set
	first []byte

	stop    context.CancelFunc
	running sync.WaitGroup
}

// FilesConfig configures Files. The zero value is ready to use.
type FilesConfig struct {
	Config

	// Refresh is how long a change takes at most to be in force. The files are read twice in that time, and are in force once two
	// reads in a row are equal: files half written are left alone. Contents are compared: how a file is replaced, by writing,
	// renaming or another symbolic link, doesn't matter. Zero: 1 s.
	Refresh time.Duration

	// OnReload is called after the files have changed: err is nil once they are in force, or why they are refused, once for each
	// problem. Close waits for it. If nil, nothing is called.
	OnReload func(err error)

	// Logger logs the same. If nil, slog.Default() is used.
	Logger *slog.Logger
}

// Open reads the files of a folder, which must be right.
func Open(dir string, cfg FilesConfig) (*Files, error) {
	if cfg.Refresh <= 0 {
		cfg.Refresh = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	f := &Files{dir: dir, cfg: cfg, stop: func() {}}
	var err error
	if f.first, err = f.read(); err != nil {
		return nil, err
	}
	if f.set, err = f.parse(f.first); err != nil {
		return nil, err
	}
	return f, nil
}

// Set is the configuration as Open has read it.
func (f *Files) Set() *Set { return f.set }

// Follow calls use with each new state of the files, until Close. What is wrong with any of them, or what use refuses, refuses all
// of them: the state before stays in force. Call it once.
func (f *Files) Follow(use func(*Set) error) {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	f.running.Go(func() {
		smallfile.Poll(ctx, max(1, f.cfg.Refresh/2), f.first, steady(f.first, f.read), func(bundle []byte) error {
			set, err := f.parse(bundle)
			if err != nil {
				return err
			}
			return use(set)
		}, f.report)
	})
}

// Close ends Follow.
func (f *Files) Close() error {
	f.stop()
	f.running.Wait()
	return nil
}

func (f *Files) report(err error) {
	if err != nil {
		f.cfg.Logger.Error("sluice: rate limit configuration refused, the one before stays in force", "err", err)
	} else {
		f.cfg.Logger.Info("sluice: rate limit configuration in force")
	}
	if f.cfg.OnReload != nil {
		f.cfg.OnReload(err)
	}
}

// steady is a read that returns what it did before, at first data, until two reads in a row are equal.
func steady(data []byte, read func() ([]byte, error)) func() ([]byte, error) {
	type state struct {
		data []byte
		err  error
	}
	last := state{data: data}
	known := last
	return func() ([]byte, error) {
		now, err := read()
		if bytes.Equal(now, last.data) && fmt.Sprint(err) == fmt.Sprint(last.err) {
			known = state{now, err}
		}
		last = state{now, err}
		return known.data, known.err
	}
}

// read returns all files as one text, which differs if one of them does.
func (f *Files) read() ([]byte, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		name := filepath.Join(f.dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") || !yamljson.IsYAML(name) {
			continue
		}
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		if len(files) == maxFiles {
			return nil, &fs.PathError{Op: "read", Path: f.dir, Err: fmt.Errorf("more than %d files", maxFiles)}
		}
		text, err := smallfile.Read(name, maxFile, func(field, value, bound string) error {
			return fmt.Errorf("%s = %s: %s", field, value, bound)
		})
		if err != nil {
			return nil, err
		}
		files = append(files, File{Name: name, Text: text})
	}
	return json.Marshal(files)
}

func (f *Files) parse(bundle []byte) (*Set, error) {
	var files []File
	if err := json.Unmarshal(bundle, &files); err != nil {
		return nil, err
	}
	return Parse(files, f.cfg.Config)
}
