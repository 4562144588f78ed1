// Package terminal draws on terminals, and reads keys and passwords from them.
package terminal

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Screen draws pages on the alternate screen of a terminal.
type Screen struct {
	W    io.Writer
	Rows func() int // 0 if not known
}

func (s *Screen) Open() error {
	_, err := io.WriteString(s.W, "\x1b[?1049h\x1b[?25l\x1b[?7l") // alternate screen, no cursor, no line wrap
	return err
}

func (s *Screen) Close() { _, _ = io.WriteString(s.W, "\x1b[?7h\x1b[?25h\x1b[?1049l") }

// Draw overwrites the page before: clearing it first would flicker. The footer is on the last row; lines of the page without room
// above it are left out.
func (s *Screen) Draw(page, footer string) error {
	lines := strings.Split(strings.TrimRight(page, "\n"), "\n")
	if rows := s.Rows(); rows > 0 {
		lines = lines[:min(max(rows-1, 0), len(lines))]
		lines = append(lines, make([]string, max(rows-1, 0)-len(lines))...)
	}
	lines = append(lines, footer)
	_, err := io.WriteString(s.W, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
	return err
}

// Terminal is an interactive terminal; in is nil if input comes from elsewhere.
type Terminal struct{ in, Out *os.File }

// TerminalOf is nil if out isn't a terminal.
func TerminalOf(in io.Reader, out io.Writer) *Terminal {
	if !IsTerminal(out) {
		return nil
	}
	t := &Terminal{Out: out.(*os.File)}
	t.in, _ = in.(*os.File)
	return t
}

// Rows is how many lines the terminal shows now, 0 if that isn't known.
func (t *Terminal) Rows() int {
	_, rows, err := term.GetSize(int(t.Out.Fd()))
	if err != nil {
		return 0
	}
	return rows
}

// Keys calls pressed with each key, without waiting for a line, until ctx ends. Ctrl-C is a key, too: the terminal sends no
// signals meanwhile. The returned function restores the terminal. Where the terminal can't be set up, no key is read.
func (t *Terminal) Keys(ctx context.Context, pressed func(key byte)) (restore func()) {
	if t.in == nil {
		return func() {}
	}
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return func() {}
	}
	go func() { // a blocked Read ends with the program
		for key := make([]byte, 1); ctx.Err() == nil; {
			n, err := t.in.Read(key)
			if err != nil {
				return
			}
			if n == 1 {
				pressed(key[0])
			}
		}
	}()
	return func() { _ = term.Restore(int(t.in.Fd()), before) }
}

// ReadPassword prompts for a password, which the terminal doesn't show. It restores the terminal if ctx ends first.
func ReadPassword(ctx context.Context, in *os.File, prompt io.Writer) (string, error) {
	fd := int(in.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type answer struct {
		Text []byte
		err  error
	}
	typed := make(chan answer, 1)
	fmt.Fprint(prompt, "Password: ")
	defer fmt.Fprintln(prompt)
	go func() {
		text, err := term.ReadPassword(fd)
		typed <- answer{text, err}
	}()
	select {
	case a := <-typed:
		return string(a.Text), a.err
	case <-ctx.Done(): // the reader stays until the program ends
		_ = term.Restore(fd, before)
		return "", context.Cause(ctx)
	}
}

// IsTerminal reports whether a reader or writer is a terminal.
func IsTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
