package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// screen draws pages in place, on the second screen that terminals have: afterwards all is as it was.
type screen struct {
	w    io.Writer
	rows func() int // 0: not known
}

func (s *screen) open() error {
	_, err := io.WriteString(s.w, "\x1b[?1049h\x1b[?25l\x1b[?7l") // second screen, no cursor, no lines that wrap
	return err
}

func (s *screen) close() { _, _ = io.WriteString(s.w, "\x1b[?7h\x1b[?25h\x1b[?1049l") }

// draw writes over the page before, rather than clear it first, which would flicker. What has no room below is left out.
func (s *screen) draw(page string) error {
	lines := strings.Split(strings.TrimRight(page, "\n"), "\n")
	if rows := s.rows(); rows > 0 {
		lines = lines[:min(rows, len(lines))]
	}
	_, err := io.WriteString(s.w, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
	return err
}

// terminal is one that somebody sits at. stty handles it: there is one wherever there are terminals, and every system has
// other calls for it.
type terminal struct{ in, out *os.File }

// terminalOf is nil if the output isn't a terminal.
func terminalOf(in io.Reader, out io.Writer) *terminal {
	if !isTerminal(out) {
		return nil
	}
	t := &terminal{out: out.(*os.File)}
	t.in, _ = in.(*os.File)
	return t
}

func stty(file *os.File, args ...string) (string, error) {
	cmd := exec.Command("stty", args...)
	cmd.Stdin = file
	text, err := cmd.Output()
	return strings.TrimSpace(string(text)), err
}

// rows is how many lines the terminal shows, 0 if that isn't known. It is asked anew each time: windows change.
func (t *terminal) rows() int {
	text, err := stty(t.out, "size")
	var rows, columns int
	if _, bad := fmt.Sscan(text, &rows, &columns); err != nil || bad != nil {
		return 0
	}
	return rows
}

// keys calls pressed with each key, without waiting for a line, until ctx ends. The function it returns waits for that and
// makes the terminal as it was. Where that can't be done, no key is read.
func (t *terminal) keys(ctx context.Context, pressed func(key byte)) (restore func()) {
	if t.in == nil {
		return func() {}
	}
	before, err := stty(t.in, "-g")
	if err == nil {
		_, err = stty(t.in, "-icanon", "-echo", "min", "0", "time", "1") // a read ends after 0.1 s: so it can be stopped
	}
	if err != nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for key := make([]byte, 1); ctx.Err() == nil; {
			n, err := t.in.Read(key)
			if n == 1 {
				pressed(key[0])
			} else if !errors.Is(err, io.EOF) { // which is what nothing within 0.1 s is told as
				return
			}
		}
	}()
	return func() {
		stop()
		<-done
		_, _ = stty(t.in, before)
	}
}
