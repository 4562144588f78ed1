package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The comparison runs, here without the reference: what is exact is so, and a denied request charges nothing.
func TestCompare(t *testing.T) {
	var out bytes.Buffer
	o := options{only: "sluice-envoy", rounds: 1, slice: 200 * time.Millisecond, callers: 16}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "| one, over") || strings.HasPrefix(line, "| two, one over") {
			if lines++; !strings.HasSuffix(line, "| 0 | 0 |\n") {
				t.Error(line)
			}
		}
	}
	if lines != 4 {
		t.Errorf("%s", out.String())
	}
}
