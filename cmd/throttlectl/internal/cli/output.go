package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// result is what a command prints: encoded for machines, or as text for people.
type result interface {
	// Text writes lines. Cells that end in a tab are aligned.
	Text(w io.Writer)
}

// escape makes JSON harmless to a terminal, where it may end: control codes above ASCII and marks that turn text around are
// escaped as those of ASCII are. They can only be in strings.
func escape(b *bytes.Buffer) {
	text := b.String()
	b.Reset()
	for _, r := range text {
		switch {
		case unicode.IsPrint(r) || r == '\n':
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
	}
}

// PrintError prints an error. Servers and applications have a say in it, so it is made harmless, line by line.
func (s Streams) PrintError(err error) {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = Cell(line)
		}
	}
	fmt.Fprintln(s.ErrOut, "throttlectl:", strings.Join(lines, "\n"))
}
