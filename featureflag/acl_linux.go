package featureflag

import (
	"os"
	"syscall"
)

const accessList = "system.posix_acl_access"

// keepAccessList gives a new file the POSIX access control list of the one that it replaces, if that has one.
func keepAccessList(w *os.File, old string) error {
	list := make([]byte, 64<<10) // the most that Linux stores
	n, err := syscall.Getxattr(old, accessList, list)
	if err != nil {
		return nil // none, or a file system without
	}
	return os.NewSyscallError("setxattr", syscall.Setxattr(w.Name(), accessList, list[:n], 0))
}
