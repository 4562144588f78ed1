package terminal

import (
	"math"
	"testing"
)

func TestBar(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		part  float64
		width int
		want  string
	}{
		{0, 4, "    "},
		{-1, 4, "    "},
		{math.NaN(), 4, "    "},
		{0.001, 4, "▏   "}, // more than nothing
		{0.5, 4, "██  "},
		{0.53125, 4, "██▏ "},
		{0.97, 4, "███▉"},
		{1, 4, "████"},
		{7, 4, "████"},
		{math.Inf(1), 4, "████"},
		{0.5, 0, ""},
	} {
		if got := Bar(test.part, test.width); got != test.want {
			t.Errorf("bar(%v, %d) = %q, want %q", test.part, test.width, got, test.want)
		}
	}
}
