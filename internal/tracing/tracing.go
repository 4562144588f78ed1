// Package tracing writes a backend.Trace. Its functions do nothing without one, so that a request which isn't traced costs a
// comparison with nil.
package tracing

import (
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

// Visit records the node that a request goes to.
func Visit(t *backend.Trace, group, node string, role backend.Source) {
	if t != nil {
		t.Group, t.Node, t.Role = group, node, role
	}
}

// HandOver records that the key was handed over.
func HandOver(t *backend.Trace) {
	if t != nil {
		t.HandedOver = true
	}
}

// Record adds a call that has ended, and sets its Duration and its Err.
func Record(t *backend.Trace, c backend.Call, err error) {
	if t == nil {
		return
	}
	c.Duration = time.Since(c.Start)
	if !state.IsRedirect(err) {
		c.Err = err
	}
	t.Calls = append(t.Calls, c)
}
