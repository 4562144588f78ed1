package simulation_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/simulation"
)

// TestPlants is what the simulation is worth: it finds bugs that are planted in servers, network and clocks.
func TestPlants(t *testing.T) {
	healthy := simulation.Scenario{Groups: 2, Instances: 3, Callers: 3, Keys: 2, Refunds: 0.2}
	failover := healthy
	failover.Failovers, failover.Flushes = 1, 1
	reshard := simulation.Scenario{
		Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 4, Informed: true, Patient: true, Refunds: 0.15,
	}
	crossing := reshard // some act under the old topology still
	crossing.Informed, crossing.Changes = false, 1
	for _, test := range []struct {
		name   string
		plant  simulation.Plant
		in     simulation.Scenario
		within uint64 // seeds
	}{
		{"floors ignored after a failover", simulation.FloorIgnored, failover, 20},
		{"floors ignored in a handover", simulation.FloorIgnored, reshard, 20},
		{"refunds applied twice", simulation.RefundTwice, healthy, 10},
		{"takes sent twice", simulation.TakeTwice, healthy, 10},
		{"leases spent past their time", simulation.LeaseTooLong, healthy, 20},
		{"seals not checked", simulation.SealIgnored, crossing, 40},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.in.Plant = test.plant
			for seed := range test.within {
				if r := play(t, seed, test.in); len(r.Violations) > 0 {
					t.Logf("seed %d: %s", seed, r.Violations[0])
					return
				}
			}
			t.Errorf("not found within %d seeds", test.within)
		})
	}
}
