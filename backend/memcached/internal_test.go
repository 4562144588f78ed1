package memcached

import (
	"testing"
	"time"
)

// TestMemcachedBackoff: tries may be many, and each waits a little.
func TestMemcachedBackoff(t *testing.T) {
	for try := range 200 {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Fatalf("try %d: %v", try, r)
				}
			}()
			if d := backoff(try); d < 0 || d > 10*time.Millisecond || try == 0 && d != 0 {
				t.Errorf("try %d waits for %s", try, d)
			}
		}()
	}
}
