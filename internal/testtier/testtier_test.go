package testtier_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/testtier"
)

func TestSize(t *testing.T) {
	for value, want := range map[string]int{"": 1, "0": 1, "false": 1, "1": 2, "true": 2, "yes": 2} {
		t.Setenv("SLUICE_TEST_LONG", value)
		if got := testtier.Size(1, 2); got != want {
			t.Errorf("SLUICE_TEST_LONG=%q: %d, want %d", value, got, want)
		}
	}
}
