package load

import (
	"testing"
	"time"
)

// At the smallest rate there is, most callers would wait for longer than a duration can be.
func TestLoadAtSmallestRate(t *testing.T) {
	t.Parallel()
	a := &attack{callers: maxCallers, rate: 1e-6, duration: time.Minute, start: time.Now()}
	if _, ok := a.nextDue(t.Context()); !ok {
		t.Error("nobody asks first")
	}
	for range maxCallers {
		if due, ok := a.nextDue(t.Context()); ok {
			t.Fatalf("request %d is due at %v", a.next.Load(), due)
		}
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		"10.0.0.1:1": false, "0.0.0.0:1": false, "127.0.0.1.example:1": false, "127.0.0.1": false, "": false, ":6379": false,
	} {
		if got := loopback(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}
