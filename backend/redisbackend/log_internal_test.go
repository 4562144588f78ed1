package redisbackend

import (
	"fmt"
	"testing"
	"time"
)

// One line in ten seconds for each kind; the next tells how many were suppressed; and no flood of formats is kept.
func TestLogAdmits(t *testing.T) {
	t.Parallel()
	l := &clientLog{kinds: map[string]*logKind{}}
	start := time.Unix(1e9, 0)
	for _, step := range []struct {
		format     string
		at         time.Duration
		ok         bool
		suppressed int
	}{
		{"a", 0, true, 0},
		{"a", time.Second, false, 0},
		{"b", time.Second, true, 0},
		{"a", logEvery - 1, false, 0},
		{"a", logEvery, true, 2},
		{"a", 2*logEvery - 1, false, 0},
		{"a", 3 * logEvery, true, 1},
		{"a", 4 * logEvery, true, 0},
	} {
		suppressed, ok := l.admit(step.format, start.Add(step.at))
		if ok != step.ok || suppressed != step.suppressed {
			t.Errorf("%q after %v: %v, %d suppressed; want %v, %d", step.format, step.at, ok, suppressed, step.ok, step.suppressed)
		}
	}
	for i := range 10 * maxLogKinds {
		l.admit(fmt.Sprint(i), start)
	}
	if len(l.kinds) > maxLogKinds {
		t.Errorf("%d kinds are kept", len(l.kinds))
	}
}
