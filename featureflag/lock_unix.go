//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package featureflag

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lock waits until no other process and no other goroutine writes into dir. It locks the directory itself: the file is
// replaced, and a file beside it would have to stay for ever.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return func() {
				_ = syscall.Flock(int(d.Fd()), syscall.LOCK_UN) // a child between fork and exec has a copy of d
				_ = d.Close()
			}, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			_ = d.Close()
			return nil, &os.PathError{Op: "lock", Path: dir, Err: err}
		}
		select { // a blocking Flock would not end with ctx
		case <-ctx.Done():
			_ = d.Close()
			return nil, &os.PathError{Op: "lock", Path: dir, Err: ctx.Err()}
		case <-time.After(time.Millisecond):
		}
	}
}
