package simulation_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/simulation"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
)

// creditLimits are what is played on credit.
var creditLimits = [][]limit.Limit{
	{limit.Fixed(200, time.Second).Aligned()},
	{limit.Sliding(240, time.Second, 250*time.Millisecond)},
	{limit.Fixed(200, time.Second)},
	{limit.Fixed(100, 400*time.Millisecond).Staggered(), limit.Fixed(600, 4*time.Second).Aligned()},
	{limit.TokenBucket(200, time.Second, 120)},
	{limit.Sliding(120, 200*time.Millisecond, 20*time.Millisecond), limit.TokenBucket(300, time.Second, 300)},
}

func creditOf(seed uint64) simulation.Credit {
	pick := func(n uint64) uint64 { seed = seed*6364136223846793005 + 1442695040888963407; return seed >> 33 % n }
	limits := creditLimits[seed%uint64(len(creditLimits))]
	processes := int(2 + pick(4))
	c := simulation.Credit{
		Processes: processes, Keys: int(1 + pick(2)), Limits: limits, Trip: time.Duration(1+pick(20)) * time.Millisecond, Span: 4 * time.Second,
		Lease: lease.Config{
			Processes: processes, Slack: []float64{0.1, 0.3, 0.6, 0.95}[pick(4)], Flush: time.Duration(5+pick(60)) * time.Millisecond,
			Least: int64(pick(2) * pick(8)), Batch: int64(pick(2)) - 1,
		},
		Refunds: []float64{0, 0.1}[pick(2)], Deaths: pick(2) == 0,
	}
	if pick(3) > 0 {
		c.Refused, c.LostCalls, c.LostReplies, c.Late = 0.03*float64(pick(3)), 0.02*float64(pick(3)), 0.02*float64(pick(3)), 0.02*float64(pick(3))
	}
	c.Large, c.Resets = []float64{0, 0.05, 0.3}[pick(3)], []float64{0, 0.003, 0.03}[pick(3)]
	if hasBucket(limits) {
		c.Refunds, c.Resets, c.Lease.Batch = 0, 0, -1
	}
	return c
}

func hasBucket(limits []limit.Limit) bool {
	for i := range limits {
		if limits[i].Algorithm == limit.Bucket {
			return true
		}
	}
	return false
}

func playCredit(t *testing.T, c simulation.Credit, seed uint64) (r *simulation.CreditReport) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { r = c.Play(seed) })
	return r
}

// TestCredit is promise P14: on credit no window holds more than Max and an allowance for each process life that admits in it,
// whatever is lost, late or dies; and nothing is charged to a window that was not admitted in it.
func TestCredit(t *testing.T) {
	var onCredit, admitted, lost, lives, large, resets int64
	var above float64
	for seed := range uint64(testtier.Size(60, 600)) {
		r := playCredit(t, creditOf(seed), seed)
		for _, v := range r.Violations[:min(len(r.Violations), 3)] {
			t.Errorf("seed %d, %v: %s", seed, creditOf(seed).Limits, v)
		}
		if t.Failed() {
			t.Fatalf("%+v: %+v", creditOf(seed), *r)
		}
		onCredit, admitted, lost, lives = onCredit+r.OnCredit, admitted+r.Admitted, lost+int64(r.Lost), lives+int64(r.Lives)
		large, resets = large+int64(r.LargeOnCredit), resets+int64(r.Resets)
		if r.Of > 0 {
			above = max(above, float64(r.Above)/float64(r.Of))
		}
	}
	shown := fmt.Sprintf("%d of %d on credit, %d of them large; %d charges lost, %d resets, %d lives; at most %.0f%% of what may be above Max",
		onCredit, admitted, large, lost, resets, lives, 100*above)
	t.Log(shown)
	if onCredit*4 < admitted || lost == 0 || large < 100 || resets < 100 || above < 0.5 {
		t.Errorf("%s: the test shows little", shown)
	}
}

// TestCreditPlants: the checks find bugs.
func TestCreditPlants(t *testing.T) {
	for _, test := range []struct {
		name   string
		plant  simulation.CreditPlant
		within uint64
		change func(c *simulation.Credit)
		only   func(c *simulation.Credit) // nothing is found without what this takes away
	}{
		{"allowance renewed before the reply", simulation.RenewedAtSend, 12, nil, nil},
		{"charge without its mark", simulation.Unmarked, 12, nil, nil},
		{"a lost charge taken for made", simulation.LossForgotten, 20, func(c *simulation.Credit) { c.LostCalls = 0.2 }, nil},
		{"a lost charge sent again", simulation.ChargedAgain, 12, func(c *simulation.Credit) { c.LostReplies = 0.2 }, nil},
		{"no allowance", 0, 12, func(c *simulation.Credit) {
			c.Stated = &lease.BoundError{Slack: 0.1, Processes: c.Processes}
			c.Lease.Slack, c.Lease.Processes = 0.95, 1
		}, nil},
		{"a reset taken for a charge", simulation.ForgivenByReset, 12, nil, func(c *simulation.Credit) { c.Resets = 0 }},
		{"room for a part only", simulation.FirstPartOnly, 20, nil, func(c *simulation.Credit) { c.Large = 0 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := func(without func(*simulation.Credit)) (seed uint64, violation string) {
				for seed := range test.within {
					c := creditOf(seed)
					c.Plant = test.plant
					for _, change := range []func(*simulation.Credit){test.change, without} {
						if change != nil {
							change(&c)
						}
					}
					if r := playCredit(t, c, seed); len(r.Violations) > 0 {
						return seed, r.Violations[0]
					}
				}
				return 0, ""
			}
			seed, violation := found(nil)
			if violation == "" {
				t.Errorf("not found within %d seeds", test.within)
			}
			t.Logf("seed %d: %s", seed, violation)
			if test.only != nil {
				if seed, violation := found(test.only); violation != "" {
					t.Errorf("also found without, by seed %d: %s", seed, violation)
				}
			}
		})
	}
}
