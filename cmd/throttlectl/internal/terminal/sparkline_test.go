package terminal_test

import (
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

func TestSparkline(t *testing.T) {
	t.Parallel()
	for want, values := range map[string][]float64{
		"        ": nil,
		"       ▁": {0},
		"      █▁": {0.001, 0},
		"▁▂▂▃▄▅▇█": {9, 0, 0.1, 10, 20, 35, 50, 80, 100}, // the first is too old
	} {
		if got := terminal.Sparkline(values, 8); got != want {
			t.Errorf("%v: %q, want %q", values, got, want)
		}
	}
}
