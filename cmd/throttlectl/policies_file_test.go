//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

// What can't be read is a failure, not a document that is refused. A pipe is not waited for.
func TestPoliciesCheckOfNoFile(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	fail(t, exitFailure, "must be a regular file", "policies", "check", pipe)
	fail(t, exitFailure, "must be a regular file", "policies", "check", t.TempDir())
}
