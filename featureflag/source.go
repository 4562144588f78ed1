package featureflag

import (
	"context"

	"github.com/sluice-go/sluice/internal/typednil"
)

// Value is what a source holds of a flag.
type Value struct {
	Percent float64 `json:"percent"` // 0 to 100
	Version uint64  `json:"version"` // raised with every change, 1 to 2^38-1; 0 if the source has no versions
	Killed  bool    `json:"killed"`  // the flag counts as 0 %, whatever Percent says
}

// effective is the percentage that every process without an override or a problem applies.
func (v Value) effective() float64 {
	if v.Killed {
		return 0
	}
	return v.Percent
}

// Source is where a flag's percentage comes from.
type Source interface {
	// Load reads the flag's value. It is called by one goroutine at a time, and must return when ctx ends: nothing
	// else about the flag happens meanwhile, and its Close waits.
	Load(ctx context.Context, name string) (Value, error)
}

// Watcher is a Source that can tell of changes. Loads at every interval go on beside it.
type Watcher interface {
	Source

	// Watch calls changed once it watches, and whenever the flag may have changed, until ctx ends or it can't go on.
	// It is then called again after a pause.
	Watch(ctx context.Context, name string, changed func()) error
}

// Static is a constant percentage, known from the start.
func Static(percent float64) Source {
	return static{Percent: percent, Version: 1}
}

type static Value

func (s static) Load(context.Context, string) (Value, error) { return Value(s), nil }

func (s static) validate() error { return checkPercent("Source: percent", s.Percent) }

// Func is whatever f returns, when it is asked at every interval. A Version of 0 means that f knows none: changes are
// then counted in this process alone. f must return when its context ends.
func Func(f func(ctx context.Context) (Value, error)) Source { return function(f) }

type function func(context.Context) (Value, error)

func (f function) Load(ctx context.Context, _ string) (Value, error) { return f(ctx) }

func (f function) validate() error {
	if f == nil {
		return invalid("Source: function", "nil", "must not be nil")
	}
	return nil
}

// Set stores a percentage under a larger version, and returns what is stored now. A killed flag stays killed. A flag
// that isn't there is made. Only [File] and [Redis] can be written, others return [ErrReadOnly].
//
// A file is replaced by a new one of the same owner, group, permissions and access list, so that its readers
// keep access. Only root can keep the owner of another user's file: other users get an [*Error].
func Set(ctx context.Context, s Source, name string, percent float64) (Value, error) {
	return write(ctx, s, name, change{percent: &percent})
}

// Kill makes the flag 0 % in all processes, under a larger version, and keeps its percentage for [Revive]. A flag that
// isn't there is made, at 0 %.
func Kill(ctx context.Context, s Source, name string) (Value, error) {
	killed := true
	return write(ctx, s, name, change{killed: &killed})
}

// Revive ends what [Kill] began, under a larger version. Its error is [ErrNotFound] if there is no such flag.
func Revive(ctx context.Context, s Source, name string) (Value, error) {
	killed := false
	return write(ctx, s, name, change{killed: &killed})
}

// change is what to write; what is nil stays.
type change struct {
	percent *float64
	killed  *bool
}

// setter is a Source that can be written.
type setter interface {
	set(ctx context.Context, name string, c change) (Value, error)
}

func write(ctx context.Context, s Source, name string, c change) (Value, error) {
	errs := []error{checkName(name), checkSource(s)}
	if ctx == nil {
		errs = append(errs, invalid("ctx", "nil", "must not be nil"))
	}
	if c.percent != nil {
		*c.percent += 0 // -0 becomes 0
		errs = append(errs, checkPercent("percent", *c.percent))
	}
	if err := report(errs...); err != nil {
		return Value{}, err
	}
	w, ok := s.(setter)
	if !ok {
		return Value{}, wrap(ErrReadOnly, "flag %q: ", name)
	}
	v, err := w.set(ctx, name, c)
	return v, wrap(err, "flag %q: ", name)
}

func checkSource(s Source) error {
	if v, ok := s.(interface{ validate() error }); ok { // those of this package name what they lack
		return v.validate()
	}
	if typednil.Is(s) {
		return invalid("Source", "nil", "must not be nil")
	}
	return nil
}

// checkName keeps names readable in files, logs and attributes.
func checkName(name string) error {
	ok := len(name) >= 1 && len(name) <= 128
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '_', c == '-', c == '.', c == ':', c == '/':
		default:
			ok = false
		}
	}
	if !ok {
		return invalid("Name", quote(name), "must be 1 to 128 of A-Z a-z 0-9 _ - . : /")
	}
	return nil
}
