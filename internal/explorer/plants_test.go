package explorer_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/explorer"
	"github.com/sluice-go/sluice/limit"
)

// TestPlants is what the search is worth: it finds each bug that is planted.
func TestPlants(t *testing.T) {
	two := explorer.Handover{Places: 2, Processes: 2, Takes: 1, Refunds: 1, Versions: 3}
	three := two
	three.Places = 3
	for _, test := range []struct {
		name  string
		plant explorer.Plant
	}{
		{"seals not checked", explorer.SealIgnored},
		{"adopted without floor", explorer.FloorDropped},
		{"seals not kept", explorer.SealForgotten},
		{"refunds carried out twice", explorer.RefundTwice},
	} {
		for _, in := range []explorer.Handover{two, three} {
			in.Plant = test.plant
			if test.plant == explorer.RefundTwice { // more than it gives back has to be used
				in.Takes, in.Versions = 2, 1
			}
			find(t, test.name, in.Shortest(30))
		}
	}
}

// TestLeasePlants is TestPlants for leases.
func TestLeasePlants(t *testing.T) {
	for _, test := range []struct {
		name  string
		plant explorer.Plant
		in    explorer.Leases
	}{
		{"an old reading of the server's clock is trusted", explorer.ClockTrusted, explorer.Leases{Lag: 1}},
		{"time is counted from the reply", explorer.SinceReply, explorer.Leases{}},
		{"sleep is not noticed", explorer.SleepUnnoticed, explorer.Leases{Sleeps: 1}},
		{"returns are repeated", explorer.ReturnRepeated, explorer.Leases{Faults: 1, Takes: 1}},
		{"what was charged before a reset is given back after it", explorer.ResetForgotten, explorer.Leases{Resets: 1, Takes: 1}},
	} {
		for _, l := range leaseLimits {
			in := test.in
			in.Limit, in.Plant, in.Processes, in.Fetches, in.Batch, in.Ticks = l, test.plant, 2, 1, 2, 3
			if test.plant == explorer.ResetForgotten && l.Algorithm == limit.SlidingWindow {
				continue // the plant is one of fixed windows
			}
			find(t, test.name+" "+l.String(), in.Shortest(16))
		}
	}
}

// TestBucketPlants is TestPlants for buckets.
func TestBucketPlants(t *testing.T) {
	find(t, "the lives of a bucket are joined", explorer.Buckets{
		Burst: 2, Takes: 4, Refunds: 2, Ticks: 4, Late: 1, Floors: 1, Plant: explorer.LivesJoined,
	}.Shortest(12))
}

func find(t *testing.T, name string, r explorer.Report) {
	if t.Logf("%s: %s", name, r); r.Violation == "" {
		t.Errorf("%s: not found", name)
	}
}
