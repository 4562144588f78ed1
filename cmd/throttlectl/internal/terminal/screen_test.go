package terminal_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

// A page leaves nothing of the one before, however much longer that was, and all is as it was afterwards.
func TestScreen(t *testing.T) {
	t.Parallel()
	f := new(fixture.FakeTerminal)
	fmt.Fprint(f, "$ throttlectl top")
	s := &terminal.Screen{W: f, Rows: func() int { return fixture.FakeRows }}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	var tall []string
	for i := range 2 * fixture.FakeRows {
		tall = append(tall, strconv.Itoa(i))
	}
	for _, test := range []struct{ page, want string }{
		{"a long line\nand another\n", "a long line\nand another"},
		{"short\n", "short"},
		{strings.Join(tall, "\n"), strings.Join(tall[:fixture.FakeRows-1], "\n")},
		{"x\n\ny\n", "x\n\ny"},
	} {
		if err := s.Draw(test.page, "q quit"); err != nil {
			t.Fatal(err)
		}
		got, _ := f.Shown()
		lines := strings.Split(got, "\n")
		if shown := strings.TrimRight(strings.Join(lines[:len(lines)-1], "\n"), "\n"); shown != test.want {
			t.Errorf("page %q looks so: %q", test.page, got)
		}
		if len(lines) != fixture.FakeRows || lines[fixture.FakeRows-1] != "q quit" {
			t.Errorf("page %q: the footer isn't the last line of %q", test.page, got)
		}
		if !f.Hidden || !f.Cut {
			t.Errorf("hidden %v, cut %v", f.Hidden, f.Cut)
		}
	}
	s.Close()
	if got, _ := f.Shown(); got != "$ throttlectl top" || f.Hidden || f.Cut || len(f.Unknown) > 0 {
		t.Errorf("after it: %q, %+v", got, f)
	}
}
