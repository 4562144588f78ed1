package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// fakeTerminal does what a terminal does on the few sequences that screens are drawn with.
type fakeTerminal struct {
	mu           sync.Mutex // guards what follows
	first, other [][]rune   // lines, of which those of the second screen are other
	second       bool       // which is shown
	row, column  int
	hidden       bool     // the cursor
	cut          bool     // lines don't wrap
	pages        []string // what was shown after each write
	unknown      []string
}

const fakeRows, fakeColumns = 12, 200

var sequence = regexp.MustCompile(`^\x1b\[(\??)(\d*)([A-Za-z])`)

func (f *fakeTerminal) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for text := string(p); text != ""; {
		if found := sequence.FindStringSubmatch(text); found != nil {
			f.do(found[1] + found[2] + found[3])
			text = text[len(found[0]):]
			continue
		}
		r := []rune(text)[0]
		f.put(r)
		text = text[len(string(r)):]
	}
	f.pages = append(f.pages, f.shownLocked())
	return len(p), nil
}

func (f *fakeTerminal) lines() *[][]rune {
	lines := &f.first
	if f.second {
		lines = &f.other
	}
	for len(*lines) < fakeRows {
		*lines = append(*lines, nil)
	}
	return lines
}

func (f *fakeTerminal) do(what string) {
	lines := *f.lines()
	switch what {
	case "?1049h":
		f.second, f.other = true, nil
	case "?1049l":
		f.second = false
	case "?25l", "?25h":
		f.hidden = what == "?25l"
	case "?7l", "?7h":
		f.cut = what == "?7l"
	case "H":
		f.row, f.column = 0, 0
	case "K":
		lines[f.row] = lines[f.row][:min(f.column, len(lines[f.row]))]
	case "J":
		lines[f.row] = lines[f.row][:min(f.column, len(lines[f.row]))]
		for i := f.row + 1; i < fakeRows; i++ {
			lines[i] = nil
		}
	default:
		f.unknown = append(f.unknown, what)
	}
}

func (f *fakeTerminal) put(r rune) {
	lines := *f.lines()
	switch r {
	case '\r':
		f.column = 0
	case '\n':
		if f.row++; f.row == fakeRows { // it scrolls
			copy(lines, lines[1:])
			lines[fakeRows-1] = nil
			f.row--
		}
	default:
		for len(lines[f.row]) <= f.column {
			lines[f.row] = append(lines[f.row], ' ')
		}
		lines[f.row][f.column] = r
		f.column = min(f.column+1, fakeColumns-1)
	}
}

// shown is what somebody sees, and all that was seen before.
func (f *fakeTerminal) shown() (now string, all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shownLocked(), slices.Clone(f.pages)
}

func (f *fakeTerminal) shownLocked() string {
	var all []string
	for _, line := range *f.lines() {
		all = append(all, strings.TrimRight(string(line), " "))
	}
	return strings.TrimRight(strings.Join(all, "\n"), "\n")
}

// A page leaves nothing of the one before, however much longer that was, and all is as it was afterwards.
func TestScreen(t *testing.T) {
	t.Parallel()
	f := new(fakeTerminal)
	fmt.Fprint(f, "$ throttlectl top")
	s := &screen{w: f, rows: func() int { return fakeRows }}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	var tall []string
	for i := range 2 * fakeRows {
		tall = append(tall, strconv.Itoa(i))
	}
	for _, test := range []struct{ page, want string }{
		{"a long line\nand another\n", "a long line\nand another"},
		{"short\n", "short"},
		{strings.Join(tall, "\n"), strings.Join(tall[:fakeRows], "\n")},
		{"x\n\ny\n", "x\n\ny"},
	} {
		if err := s.draw(test.page); err != nil {
			t.Fatal(err)
		}
		if got, _ := f.shown(); got != test.want {
			t.Errorf("page %q looks so: %q", test.page, got)
		}
		if !f.hidden || !f.cut {
			t.Errorf("hidden %v, cut %v", f.hidden, f.cut)
		}
	}
	s.close()
	if got, _ := f.shown(); got != "$ throttlectl top" || f.hidden || f.cut || len(f.unknown) > 0 {
		t.Errorf("after it: %q, %+v", got, f)
	}
}

// On a terminal the page follows what is decided, from the first look on, and goes when it is interrupted.
func TestTopLive(t *testing.T) {
	t.Parallel()
	app := decide(t, throttler.Config{Policy: apiOf5}, insight.HandlerConfig{}, func(its *throttler.Throttler) {
		asks(t, its, "alice", 9)
	})
	o := &topOptions{globals: &globals{timeout: soon}, urls: []string{app.url}, interval: minInterval, sort: "name", keys: 1}
	all, err := o.processes()
	if err != nil {
		t.Fatal(err)
	}
	f := new(fakeTerminal)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan error, 1)
	go func() { ended <- o.live(ctx, &screen{w: f, rows: func() int { return fakeRows }}, all) }()
	// A page with denials, and after the next interval, which has none, a calm one.
	denials := func(page string) bool {
		return strings.Contains(page, app.KeyHash("alice")) && strings.Contains(page, "44.44%")
	}
	calm := func(page string) bool {
		return strings.Contains(page, "api     0.0        0.0 ") && !strings.Contains(page, "44.44%")
	}
	for deadline := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		_, pages := f.shown()
		if i := slices.IndexFunc(pages, denials); i >= 0 && slices.ContainsFunc(pages[i:], calm) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %q", soon, pages)
		}
	}
	interrupt()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if page, _ := f.shown(); page != "" || f.second || f.hidden || f.cut || len(f.unknown) > 0 {
		t.Errorf("left behind: %q, %+v", page, f)
	}
}
