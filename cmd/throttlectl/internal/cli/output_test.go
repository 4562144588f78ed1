package cli

import (
	"bytes"
	"errors"
	"testing"
)

func TestComplain(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	(&Factory{Streams: Streams{ErrOut: &b}}).PrintError(errors.Join(errors.New("ERR \x1b]0;owned\a"), errors.New("second\r")))
	if want := "throttlectl: ERR ?]0;owned?\nsecond?\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
