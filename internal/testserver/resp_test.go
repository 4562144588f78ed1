//go:build unix

package testserver

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestReadRequest(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, in string
		want     []string
	}{
		{"array", "*2\r\n$3\r\nget\r\n$1\r\nk\r\n", []string{"GET", "k"}},
		{"binary argument", "*2\r\n$4\r\nECHO\r\n$4\r\n\r\n*1\r\n", []string{"ECHO", "\r\n*1"}},
		{"empty argument", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", []string{"ECHO", ""}},
		{"inline", "ping\r\n", []string{"PING"}},
		{"empty line", "\r\n", nil},
		{"empty array", "*0\r\n", nil},
		{"null array", "*-1\r\n", nil},
	} {
		r := bufio.NewReader(strings.NewReader(test.in + "next"))
		raw, args, err := readRequest(r)
		if err != nil || string(raw) != test.in || !slices.Equal(args, test.want) {
			t.Errorf("%s: readRequest = %q, %q, %v; want %q", test.name, raw, args, err, test.want)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "next" {
			t.Errorf("%s: left %q", test.name, rest)
		}
	}
}

var replies = []string{
	"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12345678901234567890\r\n", "\n",
	"$5\r\na\r\nbc\r\n", "$0\r\n\r\n", "$-1\r\n", "!3\r\nERR\r\n", "=7\r\ntxt:abc\r\n",
	"*-1\r\n", "*0\r\n", "*2\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n", "~1\r\n+a\r\n", ">2\r\n+message\r\n+a\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", "|1\r\n+ttl\r\n:3\r\n*1\r\n:1\r\n",
}

func TestReadReply(t *testing.T) {
	t.Parallel()
	r := bufio.NewReader(strings.NewReader(strings.Join(replies, "")))
	for _, want := range replies {
		if got, err := readReply(r); err != nil || string(got) != want {
			t.Errorf("readReply = %q, %v; want %q", got, err, want)
		}
	}
}

func TestReadRejects(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "+OK", "?\r\n", "*x\r\n", "*2\r\n:1\r\n", "$5\r\nabc\r\n", "$9223372036854775807\r\n", "$-2\r\n", "*\r\n",
	} {
		if got, err := readReply(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("readReply(%q) = %q, nil", in, got)
		}
	}
	for _, in := range []string{"", "PING", "*1\r\n:1\r\n", "*1\r\n\r\n", "*1\r\n$-1\r\n", "*1\r\n$3\r\nab", "*x\r\n"} {
		if raw, args, err := readRequest(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("readRequest(%q) = %q, %q, nil", in, raw, args)
		}
	}
}

// FuzzReadReply holds that what is read is a prefix of what came, whatever came.
func FuzzReadReply(f *testing.F) {
	for _, reply := range replies {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if got, _ := readReply(bufio.NewReader(bytes.NewReader(in))); !bytes.HasPrefix(in, got) {
			t.Errorf("readReply(%q) = %q", in, got)
		}
		if raw, _, _ := readRequest(bufio.NewReader(bytes.NewReader(in))); !bytes.HasPrefix(in, raw) {
			t.Errorf("readRequest(%q) = %q", in, raw)
		}
	})
}
