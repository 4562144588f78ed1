package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testtier"
)

// TestChoosing plays a window of each way, on the first workload or on all: what is exact or leased is never above Max, what is
// on credit within its bound, and where keys are few fewer calls are made.
func TestChoosing(t *testing.T) {
	window = 2 * time.Second
	rows, err := play(t.Context(), workloads()[:testtier.Size(1, 4)], window, 60, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		r := &rows[i]
		if r.over > r.most {
			t.Errorf("%s, %s: %d above Max, of at most %d", r.workload, r.way, r.over, r.most)
		}
		if r.way != "exact" && strings.HasPrefix(r.workload, "tenants:") && r.calls > rows[0].calls*0.8 {
			t.Errorf("%s: %.1f calls for 100 requests, exactly %.1f", r.way, r.calls, rows[0].calls)
		}
	}
	if text := table(rows); strings.Count(text, "\n") != 2+len(rows) {
		t.Errorf("%d rows:\n%s", len(rows), text)
	}
	if err := xml.Unmarshal(draw(rows), new(struct{})); err != nil {
		t.Error(err)
	}
}
