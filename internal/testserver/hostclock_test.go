//go:build linux && amd64

package testserver_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
)

// TestHostClock steps the wall clock of another process, whose monotonic clock goes on.
func TestHostClock(t *testing.T) {
	const env = "TESTSERVER_HOST_CLOCK"
	if file := os.Getenv(env); file != "" {
		if err := testserver.FollowHostClock(file); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			now := time.Now()
			fmt.Println(now.UnixNano(), int64(now.Sub(begin)))
		}
		return
	}
	clock := testserver.NewHostClock(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHostClock$")
	cmd.Env = append(os.Environ(), env+"="+clock.File())
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var off time.Duration
	for _, by := range []time.Duration{0, 2 * time.Hour, -5 * time.Hour, 26 * 365 * 24 * time.Hour, -52 * 365 * 24 * time.Hour} {
		clock.Step(t, by)
		off += by
		_, _ = fmt.Fprintln(in)
		var wall, passed int64
		if _, err := fmt.Fscanln(out, &wall, &passed); err != nil {
			t.Fatal(err)
		}
		if wrong := time.Until(time.Unix(0, wall)) - off; wrong.Abs() > 10*time.Second {
			t.Errorf("stepped by %s, the wall clock is off by %s", off, wrong+off)
		}
		if passed < 0 || time.Duration(passed) > time.Since(begin) {
			t.Errorf("after a step by %s the monotonic clock says that %s have passed", by, time.Duration(passed))
		}
	}
	_ = in.Close()
	_ = cmd.Wait()
}
