package main

import "syscall"

// childAttributes keep an interrupt at the terminal from the servers, so that the clients end first, and let the kernel
// end them with this process however it ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
