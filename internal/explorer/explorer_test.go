package explorer_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/explorer"
	"github.com/sluice-go/sluice/internal/testtier"
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
		long bool
		in   explorer.Handover
	}{
		{"two places, a fault", false, explorer.Handover{Places: 2, Processes: 2, Takes: 1, Refunds: 1, Versions: 1, Faults: 1}},
		{"two places, more versions", false, explorer.Handover{Places: 2, Processes: 2, Takes: 2, Versions: 2}},
		{"three places, a fault", false, explorer.Handover{Places: 3, Processes: 2, Takes: 1, Versions: 3, Faults: 1}},
		{"three places, more versions", false, explorer.Handover{Places: 3, Processes: 2, Takes: 1, Refunds: 1, Versions: 4}},
		{"two places, faults", true, explorer.Handover{Places: 2, Processes: 2, Takes: 1, Refunds: 1, Versions: 1, Faults: 2}},
		{"two places, a fault, more versions", true, explorer.Handover{Places: 2, Processes: 2, Takes: 1, Refunds: 1, Versions: 2, Faults: 1}},
		{"two places, many versions", true, explorer.Handover{Places: 2, Processes: 2, Takes: 1, Refunds: 1, Versions: 3}},
		{"three places, a fault, refunds", true, explorer.Handover{Places: 3, Processes: 2, Takes: 1, Refunds: 1, Versions: 3, Faults: 1}},
		{"three places, three processes", true, explorer.Handover{Places: 3, Processes: 3, Takes: 1, Versions: 3}},
	} {
		if !test.long || testtier.Long() {
			t.Run(test.name, func(t *testing.T) { complete(t, test.in.Explore(60)) })
		}
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
			long bool
			in   explorer.Leases
		}{
			{"one process", false, explorer.Leases{Processes: 1, Batch: 2, Fetches: 1, Takes: 1, Ticks: 3, Lag: 1, Sleeps: 1, Resets: 1, Faults: 1}},
			{"a reset", true, explorer.Leases{Processes: 2, Batch: 2, Fetches: 1, Ticks: 3, Lag: 1, Resets: 1}},
			{"takes beside leases", true, explorer.Leases{Processes: 2, Batch: 2, Fetches: 1, Takes: 1, Ticks: 2, Lag: 1}},
		} {
			if test.long && !testtier.Long() {
				continue
			}
			test.in.Limit = l
			t.Run(test.name+" "+l.String(), func(t *testing.T) { complete(t, test.in.Explore(60)) })
		}
	}
}

// TestBuckets: no interval holds more than burst + rate x T, and copies from before change nothing.
func TestBuckets(t *testing.T) {
	for _, test := range []struct {
		name string
		long bool
		in   explorer.Buckets
	}{
		{"old times", false, explorer.Buckets{Burst: 2, Takes: 4, Refunds: 2, Ticks: 3, Late: 1}},
		{"old times and copies", false, explorer.Buckets{Burst: 2, Takes: 3, Refunds: 2, Ticks: 3, Late: 1, Floors: 1}},
		{"more takes", true, explorer.Buckets{Burst: 2, Takes: 5, Refunds: 2, Ticks: 4, Late: 1}},
		{"more takes and copies", true, explorer.Buckets{Burst: 2, Takes: 4, Refunds: 2, Ticks: 3, Late: 1, Floors: 1}},
		{"very old times", true, explorer.Buckets{Burst: 2, Takes: 4, Refunds: 2, Ticks: 4, Late: 2}},
	} {
		if !test.long || testtier.Long() {
			t.Run(test.name, func(t *testing.T) { complete(t, test.in.Explore(60)) })
		}
	}
}
