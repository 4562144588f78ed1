package traffic

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func moments(t *testing.T, text string, lasts time.Duration) []time.Duration {
	t.Helper()
	s, err := ParseShape(text)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(s.moments(rand.New(rand.NewPCG(1, 1)), lasts))
}

func TestSteadyShapes(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for text, want := range map[string][]time.Duration{
		"steady:5/s":       {0, 200 * ms, 400 * ms, 600 * ms, 800 * ms},
		"steady:120/m":     {0, 500 * ms},
		"steady:1/250ms":   {0, 250 * ms, 500 * ms, 750 * ms},
		"bursts:2@600ms":   {0, 0, 600 * ms, 600 * ms},
		"bursts:3@1h":      {0, 0, 0},
		"steady:0.5/s":     {0},
		"steady:7200/h":    {0, 500 * ms},
		"bursts:1@333.4ms": {0, 333400 * time.Microsecond, 666800 * time.Microsecond},
	} {
		if got := moments(t, text, time.Second); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// What comes by chance comes as often as it should, in every part of the time, in order and before it is over.
func TestRandomShapes(t *testing.T) {
	t.Parallel()
	const lasts = 1000 * time.Second
	for _, test := range []struct {
		text     string
		from, to time.Duration
		want     float64 // requests meanwhile
	}{
		{"poisson:8/s", 0, lasts, 8000},
		{"poisson:8/s", 500 * time.Second, lasts, 4000},
		{"spike:5/s,200/s@100s+10s", 0, 100 * time.Second, 500},
		{"spike:5/s,200/s@100s+10s", 100 * time.Second, 110 * time.Second, 2000},
		{"spike:5/s,200/s@100s+10s", 110 * time.Second, lasts, 4450},
		{"spike:0/s,200/s@100s+10s", 0, 100 * time.Second, 0},
		{"spike:9/s,0/s@100s+10s", 100 * time.Second, 110 * time.Second, 0},
		{"spike:0/s,2/s@500s+2562047h47m", 500 * time.Second, lasts, 1000}, // the sum of both is no duration
		{"ramp:0/s,20/s", 0, 500 * time.Second, 2500},
		{"ramp:0/s,20/s", 500 * time.Second, lasts, 7500},
		{"wave:0/s,20/s@1000s", 0, lasts, 10000},
		{"wave:0/s,20/s@1000s", 250 * time.Second, 750 * time.Second, 5000 + 5000*2/math.Pi},
	} {
		all := moments(t, test.text, lasts)
		n := 0.0
		for _, at := range all {
			if at >= test.from && at < test.to {
				n++
			}
		}
		if math.Abs(n-test.want) > 5*math.Sqrt(test.want) { // five standard deviations
			t.Errorf("%s: %v requests from %v to %v, want about %.0f", test.text, n, test.from, test.to, test.want)
		}
		if !slices.IsSorted(all) || all[len(all)-1] >= lasts || all[0] < 0 {
			t.Errorf("%s: not in order, or beyond the end", test.text)
		}
	}
}

func TestMadeTraffic(t *testing.T) {
	t.Parallel()
	var shapes []Shape
	for _, text := range []string{"steady:10/s", "bursts:5@1s", "poisson:20/s"} {
		s, err := ParseShape(text)
		if err != nil {
			t.Fatal(err)
		}
		shapes = append(shapes, s)
	}
	keys, err := NewKeys("key-", 100, 1)
	if err != nil {
		t.Fatal(err)
	}
	collect := func(seed uint64) (all []Request) {
		for a, err := range Generate(shapes, keys, seed, 100*time.Second) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, a)
		}
		return all
	}
	all := collect(1)
	if !slices.Equal(all, collect(1)) {
		t.Error("the same seed makes another traffic")
	}
	if slices.Equal(all, collect(2)) {
		t.Error("another seed makes the same traffic")
	}
	if n := float64(len(all)); math.Abs(n-3500) > 5*math.Sqrt(2000) {
		t.Errorf("%v requests, want about 3500", n)
	}
	if !slices.IsSortedFunc(all, func(a, b Request) int { return int(a.At - b.At) }) {
		t.Error("not in the order of time")
	}
	for a := range Generate(shapes, keys, 1, time.Hour) { // whoever has seen enough may stop
		if a.At > simulatedStart.UnixMicro() {
			break
		}
	}
}

// The first key of 100 has 1/H(100) of the requests under Zipf's law with exponent 1, and each a hundredth with 0.
func TestPopularity(t *testing.T) {
	t.Parallel()
	for exponent, share := range map[float64]float64{0: 0.01, 1: 0.19277, 2: 0.61162} {
		p, err := NewKeys("key-", 100, exponent)
		if err != nil {
			t.Fatal(err)
		}
		const draws = 100_000
		counts := make(map[string]float64)
		random := rand.New(rand.NewPCG(1, 1))
		for range draws {
			counts[p.Draw(random)]++
		}
		if got := counts["key-1"]; math.Abs(got-share*draws) > 5*math.Sqrt(share*draws) {
			t.Errorf("exponent %v: the first key is drawn %v of %d times, want a share of %v", exponent, got, draws, share)
		}
		if len(counts) > 100 || counts["key-100"] == 0 {
			t.Errorf("exponent %v: %d keys, the last one %v times", exponent, len(counts), counts["key-100"])
		}
	}
}
