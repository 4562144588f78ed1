package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
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
	if _, err := exec.LookPath("stty"); err != nil {
		t.Fatal(err)
	}
	app := decide(t, throttler.Config{Policy: apiOf5}, httplimit.StatsConfig{}, func(*throttler.Throttler) {})
	typed, tty := pseudoTerminal(t)
	if _, err := stty(tty, "rows", "4", "cols", "80"); err != nil {
		t.Fatal(err)
	}
	before, err := stty(tty, "-g")
	if err != nil {
		t.Fatal(err)
	}
	var shown buffer
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
		root := newRoot()
		root.SetArgs([]string{"top", "--interval", "100ms", "--url", app.url})
		root.SetIn(tty)
		root.SetOut(tty)
		root.SetErr(tty)
		code <- exitCode(root.ExecuteContext(t.Context()))
	}()
	await := func(text string) {
		t.Helper()
		for deadline := time.Now().Add(soon); !bytes.Contains([]byte(shown.String()), []byte(text)); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %q within %v: %q", text, soon, shown.String())
			}
		}
	}
	await("PROCESS")
	if during, err := stty(tty, "-g"); err != nil || during == before {
		t.Errorf("keys would wait for Enter: %v", err)
	}
	if _, err := typed.Write([]byte("xq")); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-code:
		if got != exitOK {
			t.Errorf("exit code %d", got)
		}
	case <-time.After(soon):
		t.Fatal("q doesn't end it")
	}
	await("\x1b[?1049l")
	if after, err := stty(tty, "-g"); err != nil || after != before {
		t.Errorf("the terminal was %s and is %s, %v", before, after, err)
	}
	if bytes.Contains([]byte(shown.String()), []byte("POLICY")) {
		t.Error("more lines than the terminal has")
	}
}

// A password that is typed is not shown, and the terminal is as before, also if nobody types one.
func TestPasswordIsAskedFor(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--requirepass", "s3cret")
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr, Password: "s3cret"}, redisbackend.Config{Timeout: soon})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take(t, b, "k", 1)
	for _, interrupted := range []bool{false, true} {
		typed, tty := pseudoTerminal(t)
		before, err := term.GetState(int(tty.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		var shown, stdout buffer
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
			root := newRoot()
			root.SetArgs(with(apiFlags, "peek", "k", "--ask-password", "--timeout", soon.String(), "--redis", "redis://"+server.Addr))
			root.SetIn(tty)
			root.SetOut(&stdout)
			root.SetErr(tty)
			code <- exitCode(root.ExecuteContext(ctx))
		}()
		silent := func() bool { // once it is, what is typed isn't shown
			mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			return err == nil && mode.Lflag&unix.ECHO == 0
		}
		for deadline := time.Now().Add(soon); !silent(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not asked within %v: %q", soon, shown.String())
			}
		}
		want := exitOK
		if interrupted {
			want = exitFailure
			interrupt()
		} else if _, err := typed.Write([]byte("s3cret\n")); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-code:
			if got != want {
				t.Errorf("interrupted %t: exit code %d, want %d; %q", interrupted, got, want, stdout.String())
			}
		case <-time.After(soon):
			t.Fatal("it doesn't end")
		}
		if after, err := term.GetState(int(tty.Fd())); err != nil || *after != *before {
			t.Errorf("interrupted %t: the terminal was %+v and is %+v, %v", interrupted, before, after, err)
		}
		for deadline := time.Now().Add(soon); !strings.Contains(shown.String(), "Password: "); time.Sleep(time.Millisecond) {
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
