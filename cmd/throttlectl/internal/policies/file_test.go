//go:build unix

package policies_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
)

// What can't be read is a failure, not a document that is refused. A pipe is not waited for.
func TestPoliciesCheckOfNoFile(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Fail(t, cli.ExitFailure, "must be a regular file", "policies", "check", pipe)
	clitest.Fail(t, cli.ExitFailure, "must be a regular file", "policies", "check", t.TempDir())
}
