package terminal

import (
	"bytes"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	for terminal, want := range map[bool]string{
		false: " 50%  half way\n",
		true:  "\r\x1b[K███████████████                 50%  half way\r\x1b[K",
	} {
		var b bytes.Buffer
		p := &progress{w: &b, terminal: terminal, stop: make(chan struct{})}
		p.show(0.5, "half way")
		p.End()
		if b.String() != want {
			t.Errorf("terminal %t: %q, want %q", terminal, b.String(), want)
		}
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for what, w := range map[string]any{"a file": file, "a buffer": new(bytes.Buffer), os.DevNull: null} {
		if IsTerminal(w) {
			t.Errorf("%s is taken for a terminal", what)
		}
	}
}

// Where lines are kept, there are ten of them, or one a second.
func TestProgressLines(t *testing.T) {
	t.Parallel()
	for lasts, want := range map[time.Duration]int{4 * time.Second: 4, time.Minute: 10} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			p := StartProgress(&b, lasts, func() string { return "so far" })
			time.Sleep(lasts + time.Millisecond)
			synctest.Wait()
			p.End()
			if n := bytes.Count(b.Bytes(), []byte("so far\n")); n != want || !bytes.HasSuffix(b.Bytes(), []byte("100%  so far\n")) {
				t.Errorf("%v: %d lines, want %d: %q", lasts, n, want, b.String())
			}
		})
	}
}
