package root_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// pseudoTerminal is a terminal that the kernel makes: what is written to screen is typed, what is read from it is shown.
func pseudoTerminal(t testing.TB) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	control, err := screen.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number, locked int32
	var failed syscall.Errno
	if err := control.Control(func(fd uintptr) {
		if _, _, failed = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&locked))); failed == 0 {
			_, _, failed = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
		}
	}); err != nil || failed != 0 {
		t.Fatal(err, failed)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return screen, tty
}

// On a real terminal q ends it, without Enter, and the terminal is as before.
func TestTopOnTerminal(t *testing.T) {
	t.Parallel()
	app := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{}, func(*throttler.Throttler) {})
	typed, tty := pseudoTerminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 4, Col: 80}); err != nil {
		t.Fatal(err)
	}
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	var shown fixture.Buffer
	go func() {
		for b := make([]byte, 4096); ; {
			n, err := typed.Read(b)
			if err != nil {
				return // it was closed
			}
			_, _ = shown.Write(b[:n])
		}
	}()

	code := make(chan int, 1)
	go func() {
		code <- root.Run(t.Context(), cli.Streams{In: tty, Out: tty, ErrOut: tty}, []string{"top", "--interval", "100ms", "--url", app.URL})
	}()
	await := func(text string) {
		t.Helper()
		for deadline := time.Now().Add(fixture.Soon); !bytes.Contains([]byte(shown.String()), []byte(text)); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %q within %v: %q", text, fixture.Soon, shown.String())
			}
		}
	}
	await("PROCESS")
	if during, err := term.GetState(int(tty.Fd())); err != nil || *during == *before {
		t.Errorf("keys would wait for Enter: %v", err)
	}
	await("q quit  s S sort: decisions  j k space b scroll: lines 1 to 3 of ")
	if bytes.Contains([]byte(shown.String()), []byte("POLICY")) {
		t.Error("more lines than the terminal has")
	}
	if _, err := typed.Write([]byte("sxj")); err != nil {
		t.Fatal(err)
	}
	await("sort: denied  j k space b scroll: lines 2 to 4 of ")
	if _, err := typed.Write([]byte(" ")); err != nil { // a page
		t.Fatal(err)
	}
	await("POLICY")
	if _, err := typed.Write([]byte("bbbq")); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-code:
		if got != cli.ExitOK {
			t.Errorf("exit code %d", got)
		}
	case <-time.After(fixture.Soon):
		t.Fatal("q doesn't end it")
	}
	await("\x1b[?1049l")
	if after, err := term.GetState(int(tty.Fd())); err != nil || *after != *before {
		t.Errorf("the terminal was %+v and is %+v, %v", before, after, err)
	}
}

// A password that is typed is not shown, and the terminal is as before, also if nobody types one.
func TestPasswordIsAskedFor(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--requirepass", "s3cret")
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr, Password: "s3cret"}, "")
	fixture.Take(t, b, "k", 1)
	for _, interrupted := range []bool{false, true} {
		typed, tty := pseudoTerminal(t)
		before, err := term.GetState(int(tty.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		var shown, stdout fixture.Buffer
		go func() {
			for b := make([]byte, 4096); ; {
				n, err := typed.Read(b)
				if err != nil {
					return // it was closed
				}
				_, _ = shown.Write(b[:n])
			}
		}()
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		code := make(chan int, 1)
		go func() {
			args := fixture.With(fixture.APIFlags, "peek", "k", "--ask-password", "--timeout", fixture.Soon.String(), "--redis", "redis://"+server.Addr)
			code <- root.Run(ctx, cli.Streams{In: tty, Out: &stdout, ErrOut: tty}, args)
		}()
		silent := func() bool { // once it is, what is typed isn't shown
			mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			return err == nil && mode.Lflag&unix.ECHO == 0
		}
		for deadline := time.Now().Add(fixture.Soon); !silent(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not asked within %v: %q", fixture.Soon, shown.String())
			}
		}
		want := cli.ExitOK
		if interrupted {
			want = cli.ExitFailure
			interrupt()
		} else if _, err := typed.Write([]byte("s3cret\n")); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-code:
			if got != want {
				t.Errorf("interrupted %t: exit code %d, want %d; %q", interrupted, got, want, stdout.String())
			}
		case <-time.After(fixture.Soon):
			t.Fatal("it doesn't end")
		}
		if after, err := term.GetState(int(tty.Fd())); err != nil || *after != *before {
			t.Errorf("interrupted %t: the terminal was %+v and is %+v, %v", interrupted, before, after, err)
		}
		for deadline := time.Now().Add(fixture.Soon); !strings.Contains(shown.String(), "Password: "); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("shown: %q", shown.String())
			}
		}
		if strings.Contains(shown.String(), "s3cret") {
			t.Errorf("shown: %q", shown.String())
		}
		_, _ = typed.Write([]byte("\n")) // for whoever reads still
	}
}
