package lease

import (
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
)

// TestLossesOutOfOrder: of losses that several callers record at once the last one counts.
func TestLossesOutOfOrder(t *testing.T) {
	inner, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ls, err := New(inner, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer ls.Close()
	for _, now := range []int64{7, 5} {
		ls.recordLoss(&backend.Result{Cause: backend.ErrCountsLost}, now)
	}
	if got := ls.lostAt.Load(); got != 7 {
		t.Errorf("the last loss was at %d, want 7", got)
	}
}
