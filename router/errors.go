package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-go/sluice/backend"
)

// ErrBreakerOpen is in the chain of a [*backend.Error] that was returned without a call to the node, because its circuit
// breaker is open. Nothing was charged.
var ErrBreakerOpen = errors.New("circuit breaker is open")

// ErrNotSupported is in the chain of a [*ConfigError] about a change of the topology of a router made by [New].
var ErrNotSupported = errors.New("not supported")

// ErrNoPrimary is in the chain of an error about a group whose sentinels have not named its primary yet. Nothing was
// charged.
var ErrNoPrimary = errors.New("no sentinel has named the primary yet")

// ConfigError is one value of a topology, a Config or a list of nodes that was refused. All problems are reported at once, joined.
type ConfigError struct {
	Field string // what was refused, such as "groups[1].replicas[0]" or "MaxLag"
	Value string // the value as given
	Bound string // what would be accepted
	Err   error  // a cause or a sentinel to branch on, or nil
}

func (e *ConfigError) Error() string {
	text := fmt.Sprintf("router: %s = %s: %s", e.Field, e.Value, e.Bound)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *ConfigError) Unwrap() error { return e.Err }

// kindOf is what an error says about the node; 0 if it says nothing bad. A context error without a [*backend.Error] around it is
// the caller's own.
func kindOf(err error) backend.Kind {
	if err == nil {
		return 0
	}
	if typed, ok := errors.AsType[*backend.Error](err); ok {
		return typed.Kind
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return backend.Interrupted
	}
	return 0
}
