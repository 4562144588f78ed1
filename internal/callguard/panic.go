package callguard

import (
	"fmt"
	"runtime"
	"strings"
)

// Recover is deferred around a call of a client, and makes a panic the error of that call. Hooks, dialers and credential
// providers of a client belong to the application. Their panic must not take the connection along, and where callers share a
// round trip it must not end the process: the goroutine that makes it is none of the caller's.
func Recover(err *error) {
	value := recover()
	if value == nil {
		return
	}
	what := fmt.Sprintf("a value of type %T", value) // its text may hold a key
	if fault, ok := value.(runtime.Error); ok {
		what = fault.Error()
	}
	*err = fmt.Errorf("panic in the client%s: %s", origin(), what)
}

// origin is where a panic began.
func origin() string {
	var callers [32]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
	for {
		frame, more := frames.Next()
		if frame.Function != "" && !strings.HasPrefix(frame.Function, "runtime.") {
			return fmt.Sprintf(" at %s:%d", frame.File, frame.Line)
		}
		if !more {
			return ""
		}
	}
}
