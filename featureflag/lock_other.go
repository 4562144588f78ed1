//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package featureflag

import (
	"context"
	"os"
)

var locked = make(chan struct{}, 1)

// lock keeps apart the writers of one process only.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	select {
	case locked <- struct{}{}:
		return func() { <-locked }, nil
	case <-ctx.Done():
		return nil, &os.PathError{Op: "lock", Path: dir, Err: ctx.Err()}
	}
}
