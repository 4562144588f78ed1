// Package fielderrors collects the *limit.Errors of a validation, and finds them in what one returns.
package fielderrors

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// ErrNilContext is the error of a call with a nil context.
var ErrNilContext error = &limit.Error{Field: "context", Value: "nil", Bound: "must not be nil"}

// All returns every *limit.Error in a tree of errors, in order.
func All(err error) []*limit.Error {
	switch e := err.(type) {
	case nil:
		return nil
	case *limit.Error:
		return []*limit.Error{e}
	case interface{ Unwrap() []error }:
		var all []*limit.Error
		for _, inner := range e.Unwrap() {
			all = append(all, All(inner)...)
		}
		return all
	}
	return All(errors.Unwrap(err))
}

// List collects the problems of a configuration. Its zero value is ready to use.
type List struct {
	Prefix string // before every field
	errs   []error
}

// Add adds a *limit.Error, with the value as fmt.Sprint writes it.
func (l *List) Add(field string, value any, bound string) {
	l.errs = append(l.errs, &limit.Error{Field: l.Prefix + field, Value: fmt.Sprint(value), Bound: bound})
}

// NotNegative adds an error if a number is negative.
func NotNegative[N int | time.Duration](l *List, field string, n N) {
	if n < 0 {
		l.Add(field, n, "must not be negative")
	}
}

// Err joins the problems; nil if there are none.
func (l *List) Err() error { return errors.Join(l.errs...) }
