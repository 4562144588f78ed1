package explorer_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/explorer"
	"github.com/sluice-go/sluice/limit"
)

// complete logs how far a search went. It must have ended by itself, without a violation.
func complete(t *testing.T, r explorer.Report) {
	t.Helper()
	if t.Log(r); r.Violation != "" {
		t.Error("a promise does not hold")
	} else if !r.Complete {
		t.Error("stories were cut off")
	}
}

// TestHandover: whatever versions requests act under, and whatever becomes of their messages, no window holds more than its Max.
func TestHandover(t *testing.T) {
	for _, test := range []struct {
		name string
		in   explorer.Handover
	}{
		{"two places, a fault", explorer.Handover{Places: 2, Processes: 2, Takes: 2, Versions: 1, Faults: 1}},
		{"two places, more versions", explorer.Handover{Places: 2, Processes: 2, Takes: 1, Refunds: 1, Versions: 3}},
		{"three places, a fault", explorer.Handover{Places: 3, Processes: 2, Takes: 1, Refunds: 1, Versions: 3, Faults: 1}},
		{"three places, more versions", explorer.Handover{Places: 3, Processes: 2, Takes: 1, Refunds: 1, Versions: 4}},
		{"three places, three processes", explorer.Handover{Places: 3, Processes: 3, Takes: 1, Versions: 3}},
	} {
		t.Run(test.name, func(t *testing.T) { complete(t, test.in.Explore(60)) })
	}
}

var leaseLimits = []limit.Limit{
	limit.Fixed(3, 2*time.Second), limit.Fixed(3, 2*time.Second).Aligned(), limit.Sliding(3, 2*time.Second, time.Second),
}

// TestLeases: no lease is spent after its window, and the server counts what was charged and not given back.
func TestLeases(t *testing.T) {
	for _, l := range leaseLimits {
		for _, test := range []struct {
			name string
			in   explorer.Leases
		}{
			{"one process", explorer.Leases{Processes: 1, Batch: 2, Fetches: 1, Takes: 1, Ticks: 3, Lag: 1, Sleeps: 1, Resets: 1, Faults: 1}},
			{"a reset", explorer.Leases{Processes: 2, Batch: 2, Fetches: 1, Ticks: 3, Lag: 1, Resets: 1}},
			{"takes beside leases", explorer.Leases{Processes: 2, Batch: 2, Fetches: 1, Takes: 1, Ticks: 2, Lag: 1}},
		} {
			test.in.Limit = l
			t.Run(test.name+" "+l.String(), func(t *testing.T) { complete(t, test.in.Explore(60)) })
		}
	}
}
