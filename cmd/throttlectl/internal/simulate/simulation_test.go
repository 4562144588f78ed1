package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/traffic"
	"github.com/sluice-go/sluice/limit"
)

// anyTraffic is requests of some keys with gaps and costs of all sizes.
func anyTraffic(random *rand.Rand, n int) []traffic.Request {
	gaps := []int64{0, 1, 999, 10_000, 300_000, 1_000_000, 5_000_000}
	at := int64(1_700_000_000_000_000) + random.Int64N(1e9)
	all := make([]traffic.Request, n)
	for i := range all {
		at += gaps[random.IntN(len(gaps))] * random.Int64N(3)
		all[i] = traffic.Request{At: at, Key: fmt.Sprint("key-", random.IntN(3)), Cost: 1 + random.Int64N(4)*random.Int64N(2)}
	}
	return all
}

func playing(all []traffic.Request) traffic.Traffic {
	return func(yield func(traffic.Request, error) bool) {
		for _, a := range all {
			if !yield(a, nil) {
				return
			}
		}
	}
}

// Whatever the policy and the traffic: the verdicts are those of a backend, the peaks are those that trying all intervals
// finds, no interval of any length holds more than is promised for it, and everything adds up.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 0))
		policies := []limit.Policy{fixture.AnyPolicy(t, random), fixture.AnyPolicy(t, random)}
		all := anyTraffic(random, 400)
		s := newSimulation(policies)
		if err := s.play(t.Context(), playing(all), 0); err != nil {
			t.Fatal(err)
		}
		for i, c := range s.candidates {
			admitted := byBackend(t, policies[i], all)
			var sum, offered, drawn int64
			for _, a := range admitted {
				sum += a.Cost
			}
			for _, n := range s.timeline.admitted[i] {
				drawn += n
			}
			for _, n := range s.timeline.offered {
				offered += n
			}
			if c.admitted != int64(len(admitted)) || c.admittedCost != sum || drawn != sum ||
				c.denied != int64(len(all)-len(admitted)) || offered != s.cost {
				t.Fatalf("seed %d, %s: %d admitted of cost %d (%d drawn), %d denied; a backend admits %d of cost %d",
					seed, c.name, c.admitted, c.admittedCost, drawn, c.denied, len(admitted), sum)
			}
			for _, p := range c.peaks {
				if want := mostIn(admitted, p.length); p.most != want {
					t.Fatalf("seed %d, %s: most in %d us is %d, want %d", seed, c.name, p.length, p.most, want)
				}
			}
			for range 20 {
				length := time.Duration(1+random.Int64N(60_000_000)) * time.Microsecond
				if most, bound := mostIn(admitted, length.Microseconds()), admissionBound(&c.policy, length); most > bound {
					t.Fatalf("seed %d, %s: %d admitted within %v, promised %d", seed, c.name, most, length, bound)
				}
			}
			if err := c.checkBound(); err != nil {
				t.Error(err)
			}
		}
	}
}

// byBackend is what a Memory admits.
func byBackend(t *testing.T, p limit.Policy, all []traffic.Request) (admitted []traffic.Request) {
	t.Helper()
	var now int64
	memory, err := memory.New(memory.Config{Now: func() time.Time { return time.UnixMicro(now) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		now = a.At
		r, err := memory.Take(context.Background(), backend.Request{Key: a.Key, Policy: &p, Cost: a.Cost})
		if err == nil && r.Allowed { // an error: it can never pass
			admitted = append(admitted, a)
		}
	}
	return admitted
}

// mostIn tries every interval that begins with an admission.
func mostIn(admitted []traffic.Request, length int64) (most int64) {
	for i, a := range admitted {
		sum := int64(0)
		for _, b := range admitted[i:] {
			if b.Key == a.Key && b.At < a.At+length {
				sum += b.Cost
			}
		}
		most = max(most, sum)
	}
	return most
}

// Of a traffic that one can do by hand.
func TestSimulationByHand(t *testing.T) {
	t.Parallel()
	const second = 1_000_000
	var all []traffic.Request
	for _, at := range []int64{0, 9, 10, 11, 12, 13, 30} { // window from 0 to 10, then from 10 to 20
		all = append(all, traffic.Request{At: 1_700_000_000*second + at*second, Key: "a", Cost: 1})
	}
	all = append(all, traffic.Request{At: all[6].At, Key: "a", Cost: 4})
	s := newSimulation([]limit.Policy{{Limits: []limit.Limit{limit.Fixed(2, 10*time.Second)}}})
	if err := s.play(t.Context(), playing(all), 0); err != nil {
		t.Fatal(err)
	}
	r := s.report("by hand").Policies[0]
	if r.Admitted != 5 || r.Denied != 3 || r.Impossible != 1 || r.MeanWait != 7.5 { // told to wait 8 and 7 s
		t.Errorf("%+v", r)
	}
	if want := (denialRun{2, 12, 1, "a"}); r.LongestDenial != want {
		t.Errorf("%+v, want %+v", r.LongestDenial, want)
	}
	if want := (peakReport{10, 3, 4, 9, "a"}); r.Worst[0] != want {
		t.Errorf("%+v", r.Worst)
	}
}

func TestSimulationIsBounded(t *testing.T) {
	t.Parallel()
	s := newSimulation([]limit.Policy{{Limits: []limit.Limit{limit.PerDay(10)}}})
	s.held = maxHeld - 100
	err := s.play(t.Context(), func(yield func(traffic.Request, error) bool) {
		for i := range 10 {
			if !yield(traffic.Request{At: int64(i), Key: fmt.Sprint(i), Cost: 1}, nil) {
				return
			}
		}
		t.Error("all was remembered")
	}, 0)
	if err == nil || !strings.Contains(err.Error(), "too many keys") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s = newSimulation([]limit.Policy{{Limits: []limit.Limit{limit.PerDay(10)}}})
	if err := s.play(ctx, playing(make([]traffic.Request, 2048)), 0); err != context.Canceled {
		t.Errorf("interrupted: %v", err)
	}
}

func TestTimelineWidens(t *testing.T) {
	t.Parallel()
	line := newTimeline(1)
	var offered, admitted int64
	for i := range int64(100_000) {
		at := i * i * 50_000 // up to some 16 years
		line.offer(at, 2)
		offered += 2
		if i%3 == 0 {
			line.admit(0, at, 1)
			admitted++
		}
	}
	for _, n := range line.offered {
		offered -= n
	}
	for _, n := range line.admitted[0] {
		admitted -= n
	}
	if offered != 0 || admitted != 0 || len(line.offered) > maxSlices || len(line.offered) < maxSlices/6 {
		t.Errorf("%d offered and %d admitted are missing; %d slices of %v", offered, admitted, len(line.offered), line.width())
	}
}

// A bucket may take longer to refill than the interval that its peaks are of: its key is not as good as new before.
func TestSimulationForgetsNothingThatCounts(t *testing.T) {
	t.Parallel()
	s := newSimulation([]limit.Policy{{Limits: []limit.Limit{limit.TokenBucket(1, time.Second, 10)}}})
	all := []traffic.Request{{At: 0, Key: "a", Cost: 10}}
	for i := range 3 * firstSweep {
		all = append(all, traffic.Request{At: 2_000_000 + int64(i), Key: fmt.Sprint(i), Cost: 1})
	}
	all = append(all, traffic.Request{At: 3_000_000, Key: "a", Cost: 4}, traffic.Request{At: 4_000_000, Key: "a", Cost: 4})
	if err := s.play(t.Context(), playing(all), 0); err != nil {
		t.Fatal(err)
	}
	if c := s.candidates[0]; c.denied != 1 {
		t.Errorf("%d denied, want 4 of the 3 tokens that came back in 3 s, and no more", c.denied)
	}
}
