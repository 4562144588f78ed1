package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Each line of a script is an admission: when in seconds, its cost, the end of its window in seconds, and how much of it
// is above the limit.
func TestMeters(t *testing.T) {
	t.Parallel()
	type line struct {
		at        float64
		cost, end int64
		over      int64
	}
	for text, script := range map[string][]line{
		"3/10s":         {{0, 2, 10, 0}, {5, 1, 10, 0}, {9, 1, 10, 1}, {9, 2, 10, 2}, {10, 3, 20, 0}, {11, 1, 20, 1}},
		"3/10s@aligned": {{9, 3, 10, 0}, {10, 3, 20, 0}, {19, 1, 20, 1}},
		"2/10s":         {{0, 2, 10, 0}, {4, 1, 14, 1}, {10.1, 1, 14, 0}}, // somebody didn't know of the window
		"4/10s~10s":     {{0, 4, 10, 0}, {9, 1, 19, 1}, {10, 4, 20, 0}},
		"4/10s~1s":      {{0, 4, 10, 0}, {8, 1, 18, 1}, {8.9, 1, 18, 1}, {9.1, 4, 19, 0}, {10, 1, 20, 1}},
		"1/1s+3":        {{0, 3, 0, 0}, {0, 1, 0, 1}, {2, 2, 0, 0}, {2, 2, 0, 2}, {2.5, 1, 0, 1}, {3, 1, 0, 0}},
	} {
		l, err := limit.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		m := newMeter(&l)
		for i, step := range script {
			if over := m.add(int64(step.at*1e6), step.cost, step.end*1e6); over != step.over {
				t.Errorf("%s, line %d: %d above the limit, want %d", text, i+1, over, step.over)
			}
		}
	}
}

// decided is a Throttler on simulated time.
type decided struct {
	now       int64
	throttler *throttler.Throttler
}

func newDecided(t *testing.T, p limit.Policy) *decided {
	t.Helper()
	d := &decided{now: 1_700_000_000_000_000}
	memory, err := memory.New(memory.Config{Now: func() time.Time { return time.UnixMicro(d.now) }})
	if err != nil {
		t.Fatal(err)
	}
	if d.throttler, err = throttler.New(throttler.Config{Backend: memory, Policy: p}); err != nil {
		t.Fatal(err)
	}
	return d
}

// Whatever the policy: what one place admits is never above it, in whatever order it is entered; what two places admit
// that don't know of each other is.
func TestAudit(t *testing.T) {
	t.Parallel()
	told := 0
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := fixture.AnyPolicy(t, random)
		type entry struct {
			key string
			d   throttler.Decision
		}
		var places [2][]entry
		for i := range places {
			place := newDecided(t, p)
			for range 2000 {
				place.now += random.Int64N(100_000)
				key := fmt.Sprint(random.IntN(2))
				d, err := place.throttler.Allow(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					places[i] = append(places[i], entry{key, d})
				}
			}
		}
		one, both := newAudit(&p, time.Hour), newAudit(&p, time.Hour)
		mixed := slices.Clone(places[0])
		for i := 1; i < len(mixed); i += 2 {
			mixed[i-1], mixed[i] = mixed[i], mixed[i-1]
		}
		for i := range mixed {
			one.record(mixed[i].key, 1, &mixed[i].d)
		}
		for _, place := range places {
			for i := range place {
				both.record(place[i].key, 1, &place[i].d)
			}
		}
		for i, over := range one.result() {
			if over.exact != 0 || over.all != 0 {
				t.Errorf("seed %d, %v: %+v above %v, want none", seed, p.Limits, over, p.Limits[i])
			}
		}
		for i, over := range both.result() {
			told += int(over.exact)
			if over.exact != over.all || over.all >= int64(len(places[0])+len(places[1])) {
				t.Errorf("seed %d, %v: %+v above %v", seed, p.Limits, over, p.Limits[i])
			}
		}
	}
	if told == 0 {
		t.Error("two places that don't know of each other never exceed a limit")
	}
}

// What decisions admit that don't say that they are exact is told apart.
func TestAuditTellsGuarantees(t *testing.T) {
	t.Parallel()
	p := limit.Policy{Limits: []limit.Limit{limit.PerDay(1)}}
	a := newAudit(&p, time.Second)
	d, err := newDecided(t, p).throttler.Allow(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	bounded := d
	bounded.Guarantee = throttler.Bounded
	a.record("key", 1, &bounded)
	a.record("key", 1, &d) // as exact as the first one is not
	if got := a.result()[0]; got != (excess{exact: 0, all: 1}) {
		t.Errorf("%+v", got)
	}
	a.record("key", 1, &d)
	if got := a.result()[0]; got != (excess{exact: 1, all: 2}) {
		t.Errorf("%+v", got)
	}
}
