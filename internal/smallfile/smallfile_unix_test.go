//go:build unix

package smallfile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/smallfile"
)

// TestReadOfWhatIsReplaced: a file that becomes a pipe between any two steps of a read is read or refused, and never waited
// for.
func TestReadOfWhatIsReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuse := func(field, value, bound string) error { return refusal{field, value, bound} }
	stop, swapped := make(chan struct{}), make(chan error, 1)
	go func() {
		next := filepath.Join(dir, "next")
		for {
			select {
			case <-stop:
				swapped <- nil
				return
			default:
			}
			err := syscall.Mkfifo(next, 0o600)
			if err == nil {
				err = os.Rename(next, path)
			}
			if err == nil {
				err = os.WriteFile(next, []byte("four"), 0o600)
			}
			if err == nil {
				err = os.Rename(next, path)
			}
			if err != nil {
				swapped <- err
				return
			}
		}
	}()
	done := make(chan int)
	go func() {
		refused := 0
		for range 20_000 {
			data, err := smallfile.Read(path, 4, refuse)
			if err != nil {
				refused++
			} else if string(data) != "four" {
				t.Errorf("read %q", data)
			}
		}
		done <- refused
	}()
	select {
	case refused := <-done:
		if refused == 0 || refused == 20_000 {
			t.Errorf("%d of 20,000 reads refused: nothing was replaced", refused)
		}
	case <-time.After(time.Minute):
		t.Error("a read waits for somebody to write into a pipe")
	}
	close(stop)
	if err := <-swapped; err != nil {
		t.Error(err)
	}
}
