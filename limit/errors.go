package limit

import (
	"errors"
	"fmt"
)

// ErrCostExceedsLimit says that a request costs more than a limit of its policy can ever hold: no waiting helps.
// The error is an [*Error] with the field "cost".
var ErrCostExceedsLimit = errors.New("cost exceeds what the limit can ever hold")

// Error reports one value that was refused. It never holds a key.
type Error struct {
	Field string // what was refused, such as "max" or `policy "api": limit 2: window`
	Value string // the value as given
	Bound string // what would be accepted
	Err   error  // a sentinel to branch on, or nil
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s = %s: %s", e.Field, e.Value, e.Bound)
}

func (e *Error) Unwrap() error { return e.Err }

func refuse(field string, value any, format string, args ...any) error {
	return &Error{Field: field, Value: fmt.Sprint(value), Bound: fmt.Sprintf(format, args...)}
}
