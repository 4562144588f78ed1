package smallfile

import (
	"bytes"
	"context"
	"time"
)

// Poll reads a file every interval until ctx ends. Times of modification are not reliable, so it compares what it reads with the
// content in force, at first data, and calls use with another content, also one that failed before. It calls report with the first
// error of a read or use, with each that differs from the one before, and with nil when a content is in force anew.
func Poll(ctx context.Context, every time.Duration, data []byte, read func() ([]byte, error), use func([]byte) error, report func(error)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	problem := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, err := read()
		changed := err == nil && !bytes.Equal(now, data)
		if changed {
			err = use(now)
		}
		switch {
		case err == nil:
			if changed || problem != "" {
				report(nil)
			}
			data, problem = now, ""
		case err.Error() != problem:
			problem = err.Error()
			report(err)
		}
	}
}
