package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// result is what a command prints: encoded as JSON, or as text.
type result interface {
	// Text writes lines; cells that end in a tab are aligned.
	Text(w io.Writer)
}

// escape makes JSON harmless to a terminal: it escapes control codes above ASCII and marks that change the direction of text,
// which can only be in strings.
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

// PrintError prints an error, without the control codes that servers and applications may have put into it.
func (f *Factory) PrintError(err error) {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = Cell(line)
		}
	}
	name := render(Bad.Of("throttlectl:"), f.Colored(f.ErrOut))
	fmt.Fprintln(f.ErrOut, name, strings.Join(lines, "\n"))
}
