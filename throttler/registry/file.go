package registry

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-go/sluice/internal/smallfile"
	"github.com/sluice-go/sluice/limit"
)

const maxFile = 4 << 20

// Open makes a Registry from a JSON file of at most 4 MiB, and puts the file in force again whenever it changes, until Close.
// It fails if the file can't be read or is wrong. Later, a wrong file changes nothing and is reported once for each content,
// so a half-written file does no harm. The file may be replaced, removed and mounted again at any time. It is read at every
// Refresh: times of modification are not reliable.
func Open(path string, cfg Config) (*Registry, error) {
	f := &file{path: path}
	var err error
	if f.data, err = f.read(); err != nil {
		return nil, err
	}
	r, err := New(f.data, cfg)
	if err != nil {
		return nil, f.wrap(err)
	}
	if r.cfg.Refresh > 0 {
		ctx, stop := context.WithCancel(context.Background())
		r.stop = stop
		r.running.Go(func() { r.poll(ctx, f) })
	}
	return r, nil
}

// file is a file, its latest content, and the error of that.
type file struct {
	path string
	data []byte
	err  error
}

func (f *file) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("registry: %s: %w", f.path, err)
}

func (f *file) read() ([]byte, error) {
	data, err := smallfile.Read(f.path, maxFile, func(field, value, bound string) error {
		return &limit.Error{Field: field, Value: value, Bound: bound}
	})
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err) // it names the path
	}
	return data, nil
}

// poll reads the file until ctx ends.
func (r *Registry) poll(ctx context.Context, f *file) {
	ticker := time.NewTicker(r.cfg.Refresh)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		data, err := f.read()
		changed := err == nil && !bytes.Equal(data, f.data)
		if changed {
			f.data, f.err = data, f.wrap(r.Update(data))
		}
		if err == nil {
			err = f.err
		}
		r.report(ctx, changed, err)
	}
}

// report records the state of the file, and reports it if it is new.
func (r *Registry) report(ctx context.Context, changed bool, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	r.mu.Lock()
	known := problem == r.refused
	r.refused = problem
	r.mu.Unlock()
	if known && (err != nil || !changed) {
		return
	}
	now := r.Info()
	if err != nil {
		r.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "sluice: policies were refused, those before stay in force",
			slog.String("digest", now.Digest), slog.Any("error", err))
	} else {
		r.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "sluice: policies are in force",
			slog.String("version", now.Version), slog.String("digest", now.Digest))
	}
	if r.cfg.OnReload != nil {
		r.cfg.OnReload(now, err)
	}
}
