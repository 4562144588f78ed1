package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
)

// result is what a command prints: encoded for machines, or as text for people.
type result interface {
	// text writes lines. Cells that end in a tab are aligned.
	text(w io.Writer)
}

// print writes a result, all at once: whoever reads along sees whole lines.
func (f *Factory) print(r result) error { return f.printTo(f.Out, r) }

func (f *Factory) printTo(w io.Writer, r result) error {
	var b bytes.Buffer
	if f.JSON {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return err
		}
		escape(&b)
	} else {
		table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		r.text(table)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	_, err := w.Write(b.Bytes())
	return err
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

// cell is text of foreign origin, fit for a table and harmless to a terminal.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// printError prints an error. Servers and applications have a say in it, so it is made harmless, line by line.
func (s Streams) printError(err error) {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = cell(line)
		}
	}
	fmt.Fprintln(s.ErrOut, "throttlectl:", strings.Join(lines, "\n"))
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
