package typednil_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/typednil"
)

func TestWithin(t *testing.T) {
	t.Parallel()
	none := (*int)(nil)
	for name, test := range map[string]struct {
		v    any
		want int
	}{
		"nil":     {nil, 0},
		"pointer": {none, 1},
		"slice":   {[]any{none, 1, nil, []any{none}, []any(nil)}, 2},
		"value":   {1, 0},
	} {
		if got := typednil.Within(test.v); len(got) != test.want {
			t.Errorf("%s: %v, want %d", name, got, test.want)
		}
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		v    any
		want bool
	}{
		"nil":        {nil, true},
		"pointer":    {(*int)(nil), true},
		"func":       {(func())(nil), true},
		"map":        {(map[string]int)(nil), true},
		"not nil":    {new(int), false},
		"value":      {0, false},
		"zero value": {struct{ p *int }{}, false},
	} {
		if got := typednil.Is(test.v); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
