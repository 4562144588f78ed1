package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/internal/smallfile"
	"github.com/sluice-go/sluice/internal/strictjson"
)

// mostBytes is more than any file of settings has.
const mostBytes = 1 << 20

// DefaultFile is where the file is without --config: empty if the user has no folder for it.
func (s *Source) DefaultFile() string {
	dir := s.Env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // as the specification has it, a relative one is ignored
		home := s.Env("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "throttlectl", "config.json")
}

// Path is the file of this source, and whether it must be there. It is empty without one.
func (s *Source) Path() (path string, needed bool) {
	if s.Given {
		return s.File, s.File != ""
	}
	if path := s.Env(Variable("config")); path != "" {
		return path, true
	}
	return s.DefaultFile(), false
}

// read reads the file. All that is wrong with it is in the error, without the values: a URL may have a password.
func (s *Source) read(all []*pflag.Flag) ([]Value, error) {
	path, needed := s.Path()
	if path == "" {
		return nil, nil
	}
	data, err := smallfile.Read(path, mostBytes, func(field, value, bound string) error {
		return fmt.Errorf("%s = %s: %s", field, value, bound)
	})
	if !needed && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	members, err := strictjson.Object(data)
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	var values []Value
	var errs []error
	for _, m := range members {
		v, err := member(m, all, filepath.Dir(path))
		if err != nil {
			errs = append(errs, fmt.Errorf("--config: %s:%d: %q: %w", path, strictjson.Line(data, m.At), m.Name, err))
			continue
		}
		v.From = path
		values = append(values, v)
	}
	return values, errors.Join(errs...)
}

// UnknownError is the error of a member that is no setting.
type UnknownError struct {
	Name  string
	Known []string
}

func (e *UnknownError) Error() string { return "is no setting" }

func member(m strictjson.Member, all []*pflag.Flag, dir string) (Value, error) {
	v := Value{Name: m.Name, layer: file}
	i := slices.IndexFunc(all, func(f *pflag.Flag) bool { return f.Name == m.Name })
	if i < 0 {
		unknown := &UnknownError{Name: m.Name}
		for _, f := range all {
			unknown.Known = append(unknown.Known, f.Name)
		}
		return v, unknown
	}
	if m.Repeated {
		return v, errors.New("is given twice")
	}
	f := all[i]
	texts, err := texts(f, m.Value)
	if err != nil {
		return v, err
	}
	for _, text := range texts {
		switch {
		case kindOf(f) == URL && hasPassword(text):
			return v, errors.New(`must have no password: "password-file" names a file that has it`)
		case kindOf(f) == Path && !filepath.IsAbs(text):
			text = filepath.Join(dir, text)
		}
		v.Values = append(v.Values, text)
	}
	return v, nil
}

// texts reads a value of the JSON type that the flag has. A list may be a single string, too.
func texts(f *pflag.Flag, raw json.RawMessage) ([]string, error) {
	var one string
	var number int64
	var yes bool
	switch isText := json.Unmarshal(raw, &one) == nil && raw[0] == '"'; {
	case f.Value.Type() == "bool":
		if json.Unmarshal(raw, &yes) != nil || raw[0] == 'n' {
			return nil, errors.New("must be true or false")
		}
		return []string{strconv.FormatBool(yes)}, nil
	case f.Value.Type() == "int":
		if json.Unmarshal(raw, &number) != nil || raw[0] == 'n' {
			return nil, errors.New("must be a whole number")
		}
		return []string{strconv.FormatInt(number, 10)}, nil
	case isText && one == "":
		return nil, errors.New("must not be empty: leave it out")
	case isText:
		return []string{one}, nil
	case isList(f):
		var list []string
		if json.Unmarshal(raw, &list) != nil || len(list) == 0 || slices.Contains(list, "") {
			return nil, errors.New("must be a string, or a list of strings")
		}
		return list, nil
	}
	return nil, errors.New("must be a string")
}
