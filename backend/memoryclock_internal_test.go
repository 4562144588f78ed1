package backend

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestProcessClock: it starts at the wall clock and never steps back.
func TestProcessClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newProcessClock()
		begin := time.Now().UnixMicro()
		if got := c.now(); got != begin {
			t.Errorf("starts at %d, want %d", got, begin)
		}
		<-time.After(90 * time.Minute)
		if got, want := c.now(), begin+5_400_000_000; got != want {
			t.Errorf("90 minutes later it is %d, want %d", got, want)
		}
	})
}
