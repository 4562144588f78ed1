// Package fielderrors finds the *limit.Errors in what a validation returns.
package fielderrors

import (
	"errors"

	"github.com/sluice-go/sluice/limit"
)

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
