package featureflag

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that the source holds no flag of that name.
	ErrNotFound = errors.New("no such flag")

	// ErrVersion reports that a source's content was rejected because it changed without a larger version.
	ErrVersion = errors.New("changed without a larger version")

	// ErrReadOnly says that a source can't be written.
	ErrReadOnly = errors.New("source can't be written")

	// ErrClosed says that the flag was closed.
	ErrClosed = errors.New("closed")
)

// Error reports one invalid value, in a configuration or in what a source holds. It never holds a key.
type Error struct {
	Field string // the name of the value: "Refresh", `"use-redis": percent`
	Value string // the value as given
	Bound string // what would be accepted
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s = %s: %s", e.Field, e.Value, e.Bound)
}

func invalid(field string, value any, format string, args ...any) error {
	return &Error{Field: field, Value: fmt.Sprint(value), Bound: fmt.Sprintf(format, args...)}
}

// wrap adds the package's name, once, at the boundary.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("featureflag: %s%w", fmt.Sprintf(format, args...), err)
}

// report wraps each of several errors on its own.
func report(errs ...error) error {
	var all []error
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok { // one of validate's
			for _, e := range joined.Unwrap() {
				all = append(all, wrap(e, ""))
			}
			continue
		}
		all = append(all, wrap(err, ""))
	}
	return errors.Join(all...)
}
