package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/sluice-go/sluice/internal/smallfile"
	"github.com/sluice-go/sluice/internal/yamljson"
	"github.com/sluice-go/sluice/limit"
)

const maxFile = 4 << 20

// Open makes a Registry from a file of at most 4 MiB, and puts the file in force again whenever it changes, until Close. The
// file is YAML if its name ends in .yaml or .yml, and JSON otherwise; a YAML file is checked just as strictly, and has no
// anchors or tags. It fails if the file can't be read or is wrong. Later, a wrong file changes nothing and is reported once for
// each content, so a half-written file does no harm. The file may be replaced, removed and mounted again at any time. It is
// read at every Refresh: times of modification are not reliable.
func Open(path string, cfg Config) (*Registry, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	r := &Registry{cfg: cfg.withDefaults(), stop: func() {}}
	if err := r.updateFromFile(path, data); err != nil {
		return nil, err
	}
	if r.cfg.Refresh > 0 {
		ctx, stop := context.WithCancel(context.Background())
		r.stop = stop
		r.running.Go(func() {
			smallfile.Poll(ctx, r.cfg.Refresh, data, func() ([]byte, error) { return readFile(path) },
				func(data []byte) error { return r.updateFromFile(path, data) },
				func(err error) { r.report(ctx, err) })
		})
	}
	return r, nil
}

func readFile(path string) ([]byte, error) {
	data, err := smallfile.Read(path, maxFile, func(field, value, bound string) error {
		return &limit.Error{Field: field, Value: value, Bound: bound}
	})
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err) // it names the path
	}
	return data, nil
}

func (r *Registry) updateFromFile(path string, data []byte) error {
	text, err := data, error(nil)
	if yamljson.IsYAML(path) {
		text, err = fromYAML(data)
	}
	if err == nil {
		err = r.update(data, text)
	}
	if err != nil {
		return fmt.Errorf("registry: %s: %w", path, err)
	}
	return nil
}

// fromYAML returns a YAML document as JSON with the same lines.
func fromYAML(data []byte) ([]byte, error) {
	text, err := yamljson.Convert(data)
	if bad, ok := errors.AsType[*yamljson.Error](err); ok {
		return nil, &limit.Error{
			Field: fmt.Sprintf("line %d: document", max(bad.Line, 1)), Value: strconv.Itoa(len(data)) + " bytes",
			Bound: "must be one YAML object: " + bad.Problem,
		}
	}
	return text, err
}

// report records and reports why the file is not in force, or that it is.
func (r *Registry) report(ctx context.Context, err error) {
	r.mu.Lock()
	r.refused = ""
	if err != nil {
		r.refused = err.Error()
	}
	r.mu.Unlock()
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
