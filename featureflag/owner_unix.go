//go:build unix

package featureflag

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a new file the owner and group of the one that it replaces. Only root may give a file away: others who
// would change the owner are rejected.
func keepOwner(w *os.File, old fs.FileInfo) error {
	made, err := w.Stat()
	if err != nil {
		return err
	}
	was, is := old.Sys().(*syscall.Stat_t), made.Sys().(*syscall.Stat_t)
	if was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	if w.Chown(int(was.Uid), int(was.Gid)) != nil {
		return invalid("owner", fmt.Sprintf("%d:%d", is.Uid, is.Gid), "must stay %d:%d, or those who read the file may not: write it as that user or as root",
			was.Uid, was.Gid)
	}
	return nil
}
