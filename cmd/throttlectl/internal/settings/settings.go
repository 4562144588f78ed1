// Package settings fills in the flags that a command line leaves out: from the environment, and then from a file. A flag that
// takes part says so with Bind.
package settings

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Kind is how the value of a setting is read.
type Kind string

const (
	Text Kind = "text"
	Path Kind = "path" // in the file, relative to the file
	URL  Kind = "url"  // in the file, without a password
)

const (
	annotation    = "throttlectl_setting"
	variables     = "SLUICE_"
	excludesFlags = "throttlectl_excludes"
)

// Variable is the name of a flag in the environment.
func Variable(flag string) string {
	return variables + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Bind makes a flag a setting. If it is given, those that it excludes are not taken from a source of less weight.
func Bind(flags *pflag.FlagSet, kind Kind, name string, excludes ...string) {
	flags.Lookup(name).Usage += " [" + Variable(name) + "]"
	annotate(flags, name, annotation, string(kind))
	annotate(flags, name, excludesFlags, excludes...)
}

// Exclude has a flag that is no setting exclude others.
func Exclude(flags *pflag.FlagSet, name string, excludes ...string) {
	annotate(flags, name, excludesFlags, excludes...)
}

func annotate(flags *pflag.FlagSet, name, key string, values ...string) {
	if err := flags.SetAnnotation(name, key, values); err != nil {
		panic(err) // there is no such flag
	}
}

// Unbind makes a flag of a command one that only its command line gives.
func Unbind(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		f.Usage = strings.TrimSuffix(f.Usage, " ["+Variable(name)+"]")
		delete(f.Annotations, annotation)
	}
}

func kindOf(f *pflag.Flag) Kind {
	if kind := f.Annotations[annotation]; len(kind) == 1 {
		return Kind(kind[0])
	}
	return ""
}

func isList(f *pflag.Flag) bool { return strings.HasSuffix(f.Value.Type(), "Array") }

// All are the settings of all commands, by name.
func All(root *cobra.Command) []*pflag.Flag {
	var all []*pflag.Flag
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, flags := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				if kindOf(f) != "" && !slices.ContainsFunc(all, func(other *pflag.Flag) bool { return other.Name == f.Name }) {
					all = append(all, f)
				}
			})
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
	slices.SortFunc(all, func(a, b *pflag.Flag) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Source is where values of settings come from, besides the command line.
type Source struct {
	Getenv func(string) string // nil: no environment
	File   string              // the value of --config
	Given  bool                // whether the command line has --config

	// PasswordVariable has a password itself. It excludes the settings that PasswordFlags names.
	PasswordVariable string
	PasswordFlags    []string
}

// Value is a setting that has a value.
type Value struct {
	Name   string
	Values []string // several of a list
	From   string   // the variable, or the file with the member
	layer  int
}

// layers: the command line weighs more than the environment, and that more than the file.
const (
	commandLine = iota
	environment
	file
)

// Env is the value of a variable, empty without one.
func (s *Source) Env(name string) string {
	if s.Getenv == nil {
		return ""
	}
	return s.Getenv(name)
}

// Values reads all settings that have a value in the environment or in the file.
func (s *Source) Values(all []*pflag.Flag) ([]Value, error) {
	var values []Value
	for _, f := range all {
		text := s.Env(Variable(f.Name))
		if text == "" {
			continue
		}
		v := Value{Name: f.Name, Values: []string{text}, From: Variable(f.Name), layer: environment}
		if isList(f) {
			v.Values = strings.Fields(text)
		}
		values = append(values, v)
	}
	members, err := s.read(all)
	if err != nil {
		return nil, err
	}
	for _, v := range members {
		if !slices.ContainsFunc(values, func(other Value) bool { return other.Name == v.Name }) {
			values = append(values, v)
		}
	}
	return values, nil
}

// Apply gives cmd the values that its command line leaves out.
func (s *Source) Apply(cmd *cobra.Command) error {
	values, err := s.Values(All(cmd.Root()))
	if err != nil {
		return err
	}
	flags := cmd.Flags()
	var errs []error
	for _, v := range values {
		f := flags.Lookup(v.Name)
		if f == nil || kindOf(f) == "" || f.Changed || s.excluded(flags, v, values) {
			continue
		}
		for _, one := range v.Values {
			if err := f.Value.Set(one); err != nil {
				if kindOf(f) == URL {
					err = errors.New("is not valid")
				}
				errs = append(errs, fmt.Errorf("%s: %w", v.From, err))
			}
		}
	}
	return errors.Join(errs...)
}

// excluded reports whether a source of more weight than v's has what excludes it.
func (s *Source) excluded(flags *pflag.FlagSet, v Value, values []Value) bool {
	if v.layer > environment && slices.Contains(s.PasswordFlags, v.Name) && s.Env(s.PasswordVariable) != "" {
		return true
	}
	found := false
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(f.Annotations[excludesFlags], v.Name) {
			return
		}
		if f.Changed {
			found = true
		}
		for _, other := range values {
			if other.Name == f.Name && other.layer < v.layer {
				found = true
			}
		}
	})
	return found || slices.Contains(s.PasswordFlags, v.Name) && passwordInURL(flags, v, values)
}

// passwordInURL reports whether a URL from a source of more weight has a password.
func passwordInURL(flags *pflag.FlagSet, v Value, values []Value) (found bool) {
	flags.VisitAll(func(f *pflag.Flag) {
		if kindOf(f) != URL {
			return
		}
		if given, ok := f.Value.(pflag.SliceValue); ok && f.Changed {
			found = found || slices.ContainsFunc(given.GetSlice(), hasPassword)
		}
		for _, other := range values {
			if other.Name == f.Name && other.layer < v.layer {
				found = found || slices.ContainsFunc(other.Values, hasPassword)
			}
		}
	})
	return found
}

func hasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return strings.Contains(text, "@") // perhaps: then it is refused later
	}
	_, has := u.User.Password()
	return has
}

// Redacted is a value as it may be printed.
func (v Value) Redacted() string {
	var shown []string
	for _, text := range v.Values {
		if u, err := url.Parse(text); err == nil {
			text = u.Redacted()
		} else {
			text = "xxxxx"
		}
		shown = append(shown, text)
	}
	return strings.Join(shown, " ")
}
