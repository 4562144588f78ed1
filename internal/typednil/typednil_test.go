package typednil_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/typednil"
)

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
