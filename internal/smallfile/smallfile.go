// Package smallfile reads the files that people write for a process that runs: flags, policies, a topology. What can't be
// one is refused, for to open a pipe is to wait for a writer, and to read without a bound may take all memory.
package smallfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Read returns what is in a file of at most the given number of bytes. An error is an *fs.PathError, which names the path;
// of what is refused it holds the caller's own error, that refuse makes.
func Read(path string, most int64, refuse func(field, value, bound string) error) ([]byte, error) {
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without waiting for somebody at the other end of a pipe
	if err != nil {
		return nil, err
	}
	defer r.Close()
	info, err := r.Stat() // of what is open: the path may lead elsewhere by now
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: refuse("file", info.Mode().Type().String(), "must be a regular file")}
	}
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: refuse("size", "more", fmt.Sprintf("must be at most %d bytes", most))}
	}
	return data, nil
}
