package backendtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// step is one take of a script.
type step struct {
	at   time.Duration // after start
	cost int64
	want string // as say puts it
}

// say is a verdict in short: "ok", or "no", and for every limit what is left @ when it is full again, counted from
// start, and + how long it makes the request wait: "no 0@1m0s+20s 7@1h0m0s".
func say(v *state.Verdict) string {
	var b strings.Builder
	b.WriteString("no")
	if v.Allowed {
		b.Reset()
		b.WriteString("ok")
	}
	for s := range v.All() {
		fmt.Fprintf(&b, " %d@%s", s.Remaining, s.ResetAt.Sub(start))
		switch s.RetryAfter {
		case 0:
		case limit.Never:
			b.WriteString("+never")
		default:
			fmt.Fprintf(&b, "+%s", s.RetryAfter)
		}
	}
	return b.String()
}

// play makes the takes of a script. Where the backend can, it also peeks before each, and loads what each left.
func (m *mirror) play(t *testing.T, steps ...step) {
	t.Helper()
	for i, step := range steps {
		m.clock.set(step.at)
		if _, ok := m.Backend.(backend.Peeker); ok {
			m.peek(t, step.cost)
		}
		result := m.take(t, step.cost)
		if got := say(&result.Verdict); m.withheld == 0 && !m.mayShowLess(&result) && got != step.want {
			t.Errorf("step %d, %d at %s: %s, want %s", i, step.cost, step.at, got, step.want)
		}
		m.compareLoad(t)
		if t.Failed() {
			t.FailNow() // what follows would only be noise
		}
	}
}

const (
	us = time.Microsecond
	ms = time.Millisecond
	s1 = time.Second
)

func testFixed(t *testing.T, s *subject) {
	s.mirror("alice", limit.Fixed(3, time.Minute)).play(t,
		step{500 * ms, 1, "ok 2@1m0.5s"},
		step{10 * s1, 1, "ok 1@1m0.5s"}, // the reset was chosen by the first
		step{20 * s1, 2, "no 1@1m0.5s+40.5s"},
		step{20 * s1, 3, "no 1@1m0.5s+40.5s"},
		step{20 * s1, 1, "ok 0@1m0.5s"},
		step{60*s1 + 500*ms - us, 1, "no 0@1m0.5s+1µs"},
		step{60*s1 + 500*ms, 1, "ok 2@2m0.5s"}, // at its reset a window is over
		step{10 * time.Minute, 3, "ok 0@11m0s"},
		step{10*time.Minute + 1500*us, 1, "no 0@11m0s+59.9985s"},
	)
	s.mirror("bob", limit.Fixed(1, time.Millisecond)).play(t,
		step{10*time.Minute + 1500*us, 1, "ok 0@10m0.002s"}, // resets are whole milliseconds
		step{10*time.Minute + 1999*us, 1, "no 0@10m0.002s+1µs"},
		step{10*time.Minute + 2000*us, 1, "ok 0@10m0.003s"},
	)
	s.mirror("carol", limit.Fixed(100, 24*time.Hour)).play(t, // weights
		step{0, 60, "ok 40@24h0m0s"},
		step{0, 41, "no 40@24h0m0s+24h0m0s"},
		step{0, 40, "ok 0@24h0m0s"},
		step{24 * time.Hour, 100, "ok 0@48h0m0s"},
	)
}

func testAligned(t *testing.T, s *subject) {
	s.mirror("alice", limit.Fixed(3, time.Minute).Aligned()).play(t,
		step{50 * s1, 3, "ok 0@1m0s"},
		step{59*s1 + 999999*us, 1, "no 0@1m0s+1µs"},
		step{60 * s1, 2, "ok 1@2m0s"},
		step{119 * s1, 2, "no 1@2m0s+1s"},
		step{9*time.Minute + 30*s1, 1, "ok 2@10m0s"},
	)
}

func testStaggered(t *testing.T, s *subject) {
	// The hash of alice is 569289 ms modulo an hour, that of bob 3460027 ms.
	s.mirror("alice", limit.Fixed(2, time.Hour).Staggered()).play(t,
		step{0, 1, "ok 1@9m29.289s"},
		step{9*time.Minute + 29*s1 + 289*ms - us, 2, "no 1@9m29.289s+1µs"},
		step{9*time.Minute + 29*s1 + 289*ms, 2, "ok 0@1h9m29.289s"},
		step{5 * time.Hour, 1, "ok 1@5h9m29.289s"},
	)
	s.mirror("bob", limit.Fixed(2, time.Hour).Staggered()).play(t, step{0, 1, "ok 1@57m40.027s"})
}

func testSliding(t *testing.T, s *subject) {
	s.mirror("alice", limit.Sliding(10, time.Minute, 10*time.Second)).play(t,
		step{3 * s1, 4, "ok 6@1m0s"}, // [0s, 10s) leaves at 60s
		step{15 * s1, 4, "ok 2@1m10s"},
		step{25 * s1, 3, "no 2@1m10s+35s"},
		step{25 * s1, 2, "ok 0@1m20s"},
		step{59*s1 + 999999*us, 1, "no 0@1m20s+1µs"},
		step{60 * s1, 5, "no 4@1m20s+10s"}, // the first 4 have left
		step{60 * s1, 4, "ok 0@2m0s"},
		step{60 * s1, 1, "no 0@2m0s+10s"},
		step{60 * s1, 5, "no 0@2m0s+20s"}, // 4 leave at 70s, 2 more at 80s
		step{75 * s1, 5, "no 4@2m0s+5s"},
		step{80 * s1, 5, "ok 1@2m20s"},
		step{140 * s1, 10, "ok 0@3m20s"},
	)
	// Josiah Carlson's: 240 an hour, counted by the minute.
	m := s.mirror("bob", limit.Sliding(240, time.Hour, time.Minute))
	for minute := range 60 {
		m.clock.set(time.Duration(minute)*time.Minute + 30*time.Second)
		for range 4 {
			if v := m.take(t, 1); !v.Allowed && s.withheld == 0 {
				t.Fatalf("denied in minute %d", minute)
			}
		}
	}
	m.play(t,
		step{59*time.Minute + 59*s1, 1, "no 0@1h59m0s+1s"},
		step{60 * time.Minute, 4, "ok 0@2h0m0s"},
		step{60 * time.Minute, 1, "no 0@2h0m0s+1m0s"},
		step{61*time.Minute + 59*s1, 5, "no 4@2h0m0s+1s"},
		step{62 * time.Minute, 8, "ok 0@2h2m0s"},
	)
	// With a precision of the whole window it is an aligned fixed window.
	sliding := s.mirror("carol", limit.Sliding(3, time.Minute, time.Minute))
	aligned := s.mirror("dave", limit.Fixed(3, time.Minute).Aligned())
	for i := range 40 {
		s.clock.set(time.Duration(i) * 7 * time.Second)
		a, b := sliding.take(t, int64(i%3+1)), aligned.take(t, int64(i%3+1))
		if say(&a.Verdict) != say(&b.Verdict) && s.withheld == 0 {
			t.Errorf("at %ds sliding says %s, aligned %s", 7*i, say(&a.Verdict), say(&b.Verdict))
		}
	}
}

func testBucket(t *testing.T, s *subject) {
	s.mirror("alice", limit.TokenBucket(2, time.Second, 5)).play(t,
		step{0, 5, "ok 0@2.5s"},
		step{0, 1, "no 0@2.5s+500ms"},
		step{500*ms - us, 1, "no 0@2.5s+1µs"},
		step{500 * ms, 1, "ok 0@3s"},
		step{1500 * ms, 3, "no 2@3s+500ms"},
		step{1500 * ms, 2, "ok 0@4s"},
		step{4 * s1, 5, "ok 0@6.5s"},
		step{10 * time.Minute, 1, "ok 4@10m0.5s"},
	)
	// A third of a second is no whole number of microseconds: nothing is lost, nothing is won.
	m := s.mirror("bob", limit.TokenBucket(3, time.Second, 3))
	m.play(t,
		step{0, 3, "ok 0@1s"},
		step{0, 1, "no 0@1s+333.334ms"},
		step{333333 * us, 1, "no 0@1s+1µs"},
		step{333334 * us, 1, "ok 0@1.333334s"},
		step{666666 * us, 1, "no 0@1.333334s+1µs"},
		step{666667 * us, 1, "ok 0@1.666667s"},
		step{1 * s1, 1, "ok 0@2s"},
	)
	for i := range 300 { // three a second, for ever
		m.clock.set(time.Second + time.Duration(i+1)*s1/3 + us)
		if v := m.take(t, 1); !v.Allowed && s.withheld == 0 {
			t.Fatalf("the bucket lost a fraction after %d takes: %s", i, say(&v.Verdict))
		}
	}
}

func testPolicy(t *testing.T, s *subject) {
	second, minute, hour := limit.PerSecond(2), limit.Sliding(5, time.Minute, 10*time.Second), limit.TokenBucket(8, time.Hour, 8)
	orders := [][]limit.Limit{
		{second, minute, hour}, {second, hour, minute}, {minute, second, hour},
		{minute, hour, second}, {hour, second, minute}, {hour, minute, second},
	}
	for i, limits := range orders {
		m := s.mirror(fmt.Sprintf("order-%d", i), limits...)
		for at := range 90 { // two a second are tried, and the three limits take turns in denying
			s.clock.set(time.Duration(at) * 500 * time.Millisecond)
			m.take(t, int64(1+at%2))
		}
		m.compareLoad(t)
	}
	s.mirror("two", limit.Fixed(2, time.Minute), limit.Fixed(3, time.Hour)).play(t,
		step{0, 2, "ok 0@1m0s 1@1h0m0s"},
		step{1 * s1, 1, "no 0@1m0s+59s 1@1h0m0s"}, // the hour isn't charged
		step{60 * s1, 2, "no 2@2m0s 1@1h0m0s+59m0s"},
		step{60 * s1, 1, "ok 1@2m0s 0@1h0m0s"},
		step{61 * s1, 1, "no 1@2m0s 0@1h0m0s+58m59s"},
		step{120 * s1, 1, "no 2@3m0s 0@1h0m0s+58m0s"},
	)
	s.mirror("owt", limit.Fixed(3, time.Hour), limit.Fixed(2, time.Minute)).play(t,
		step{0, 2, "ok 1@1h0m0s 0@1m0s"},
		step{1 * s1, 1, "no 1@1h0m0s 0@1m0s+59s"},
		step{60 * s1, 2, "no 1@1h0m0s+59m0s 2@2m0s"},
		step{60 * s1, 1, "ok 0@1h0m0s 1@2m0s"},
	)
	both := s.mirror("both", limit.Fixed(1, time.Minute), limit.Fixed(1, time.Hour)) // of two denials the later binds
	both.play(t, step{0, 1, "ok 0@1m0s 0@1h0m0s"}, step{1 * s1, 1, "no 0@1m0s+59s 0@1h0m0s+59m59s"})
	if v := both.take(t, 1); v.Binding().Limit != both.policy.Limits[1] {
		t.Errorf("the binding limit is %s, want the hour", v.Binding().Limit)
	}
	many := make([]limit.Limit, limit.MaxLimits)
	for i := range many {
		many[i] = limit.Fixed(int64(100-i), time.Duration(i+1)*time.Minute)
	}
	m := s.mirror("many", many...)
	for range 30 {
		m.take(t, 7)
	}
}

// testDenied: a denied request changes nothing, however often and for whatever cost.
func testDenied(t *testing.T, s *subject) {
	for _, l := range everyAlgorithm(10, time.Hour) {
		t.Run(l.name, func(t *testing.T) {
			m := s.mirror("alice", l.Limit, limit.Fixed(100, 24*time.Hour))
			m.policy.Name = l.name
			s.clock.set(10 * time.Minute)
			m.take(t, 8)
			first := m.take(t, 3)
			for i := range 20 {
				s.clock.step(time.Millisecond)
				if v := m.take(t, int64(3+i%8)); v.Allowed {
					t.Errorf("admitted %d with %d left", 3+i%8, first.Binding().Remaining)
				}
			}
			m.compareLoad(t)
			if v := m.take(t, 2); !v.Allowed && s.withheld == 0 {
				t.Errorf("denials have used quota up: %s", say(&v.Verdict))
			}
		})
	}
}

type namedLimit struct {
	name string
	limit.Limit
}

// everyAlgorithm is one limit of each algorithm and alignment, of max per window.
func everyAlgorithm(max int64, window time.Duration) []namedLimit {
	return []namedLimit{
		{"fixed", limit.Fixed(max, window)},
		{"aligned", limit.Fixed(max, window).Aligned()},
		{"staggered", limit.Fixed(max, window).Staggered()},
		{"sliding", limit.Sliding(max, window, window/60)},
		{"bucket", limit.TokenBucket(max, window, max)},
	}
}

// testExpiry: data of a window that is over is ignored by the caller's clock, though the store still holds it; and
// data of a live window counts though its store may think otherwise.
func testExpiry(t *testing.T, s *subject) {
	max := 5 + s.withheld
	for _, l := range everyAlgorithm(max, 30*24*time.Hour) {
		t.Run(l.name, func(t *testing.T) {
			m := s.mirror("alice", l.Limit)
			m.policy.Name = l.name
			s.clock.set(0)
			v := m.take(t, 3)
			reset := v.Binding().ResetAt.Sub(start)
			s.clock.set(reset - time.Microsecond)
			switch v = m.take(t, max); {
			case v.Allowed:
				t.Errorf("admitted before the reset: %s", say(&v.Verdict))
			case !v.Binding().ResetAt.Equal(start.Add(reset)) && s.withheld == 0:
				t.Errorf("the reset wobbles: %s, was %s", v.Binding().ResetAt.Sub(start), reset)
			}
			s.clock.set(reset)
			if _, ok := s.Backend.(backend.Peeker); ok {
				if v := m.peek(t, max); !v.Allowed && s.withheld == 0 {
					t.Errorf("over, but a peek denies: %s", say(&v.Verdict))
				}
			}
			if v := m.take(t, 5); !v.Allowed {
				t.Errorf("denied after the reset: %s", say(&v.Verdict))
			}
		})
	}
}

// testClockBack: a clock that steps back, or callers whose clocks differ, never admit more.
func testClockBack(t *testing.T, s *subject) {
	s.mirror("alice", limit.Fixed(3, time.Minute)).play(t,
		step{90 * s1, 2, "ok 1@2m30s"},
		step{10 * s1, 1, "ok 0@2m30s"},
		step{10 * s1, 1, "no 0@2m30s+2m20s"},
		step{90 * s1, 1, "no 0@2m30s+1m0s"},
		step{150 * s1, 1, "ok 2@3m30s"},
	)
	s.mirror("bob", limit.Fixed(3, time.Minute).Aligned()).play(t,
		step{90 * s1, 3, "ok 0@2m0s"},
		step{30 * s1, 1, "no 0@2m0s+1m30s"},
		step{120 * s1, 1, "ok 2@3m0s"},
	)
	s.mirror("carol", limit.Sliding(3, time.Minute, 10*time.Second)).play(t,
		step{25 * s1, 1, "ok 2@1m20s"},
		step{5 * s1, 1, "ok 1@1m20s"}, // charged to the newest sub-bucket
		step{5 * s1, 2, "no 1@1m20s+1m15s"},
		step{79 * s1, 2, "no 1@1m20s+1s"},
		step{80 * s1, 3, "ok 0@2m20s"},
	)
	s.mirror("dave", limit.TokenBucket(1, time.Second, 3)).play(t,
		step{10 * s1, 2, "ok 1@12s"},
		step{9 * s1, 1, "no 0@12s+1s"},
		step{10 * s1, 1, "ok 0@13s"},
	)
}

// testPolicyChange: a new Max applies at once, another window starts afresh, and limits that a policy lost and
// regained, as during a deploy, have not forgotten.
func testPolicyChange(t *testing.T, s *subject) {
	s.clock.set(0)
	m := s.mirror("alice", limit.Fixed(10, time.Hour), limit.Sliding(10, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 10))
	m.take(t, 6)
	m.policy = &limit.Policy{Name: "suite", Limits: []limit.Limit{
		limit.Fixed(7, time.Hour), limit.Sliding(7, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 7)}}
	m.play(t, step{0, 2, "no 1@1h0m0s+1h0m0s 1@1h0m0s+1h0m0s 1@36m0s+6m0s"}, step{0, 1, "ok 0@1h0m0s 0@1h0m0s 0@42m0s"})
	m.policy = &limit.Policy{Name: "suite", Limits: []limit.Limit{limit.Fixed(20, time.Hour)}}
	m.play(t, step{0, 13, "ok 0@1h0m0s"}, step{0, 1, "no 0@1h0m0s+1h0m0s"})
	m.policy = &limit.Policy{Name: "suite", Limits: []limit.Limit{
		limit.TokenBucket(10, time.Hour, 8), limit.Fixed(3, time.Minute), limit.Sliding(9, time.Hour, time.Minute), limit.Fixed(100, time.Hour)}}
	m.play(t, step{0, 1, "ok 0@48m0s 2@1m0s 1@1h0m0s 79@1h0m0s"})
	m.policy = &limit.Policy{Name: "suite", Limits: []limit.Limit{limit.Fixed(3, 2*time.Hour), limit.Fixed(2, time.Hour)}}
	m.play(t, step{0, 1, "no 3@2h0m0s 0@1h0m0s+1h0m0s"}) // more is used than the new Max
	m.policy = &limit.Policy{Name: "another", Limits: m.policy.Limits}
	m.model = state.State{}
	m.play(t, step{0, 1, "ok 2@2h0m0s 1@1h0m0s"})
}

// testBigNumbers: counts up to 2^53-1 are exact.
func testBigNumbers(t *testing.T, s *subject) {
	const most = limit.MaxCount
	s.mirror("alice", limit.Fixed(most, time.Hour)).play(t,
		step{0, most - 2, "ok 2@1h0m0s"},
		step{0, 3, "no 2@1h0m0s+1h0m0s"},
		step{0, 1, "ok 1@1h0m0s"},
		step{0, 2, "no 1@1h0m0s+1h0m0s"},
		step{0, 1, "ok 0@1h0m0s"},
		step{0, 1, "no 0@1h0m0s+1h0m0s"},
		step{0, most, "no 0@1h0m0s+1h0m0s"},
		step{time.Hour, most, "ok 0@2h0m0s"},
	)
	const wide = int64(1) << 46
	s.mirror("bob", limit.Sliding(wide, 2*time.Minute, time.Second)).play(t,
		step{0, wide - 2, "ok 2@2m0s"},
		step{1 * s1, 1, "ok 1@2m1s"},
		step{2 * s1, 1, "ok 0@2m2s"},
		step{2 * s1, 1, "no 0@2m2s+1m58s"},
		step{120 * s1, wide - 1, "no 70368744177662@2m2s+1s"},
		step{120 * s1, wide - 2, "ok 0@4m0s"},
	)
	s.mirror("carol", limit.TokenBucket(1<<52, time.Hour, most)).play(t,
		step{0, most, "ok 0@2h0m0s"},
		step{0, 1, "no 0@2h0m0s+1µs"},
		step{us, 1 << 40, "no 1250999@2h0m0s+878.906ms"},
	)
	s.clock.set(0)
	day := limit.TokenBucket(7, 24*time.Hour, 12_345)
	v := s.mirror("dave", day).take(t, 12_345)
	if want := 42325*time.Hour + 42*time.Minute + 51*time.Second + 428572*time.Microsecond; !v.Binding().ResetAt.Equal(start.Add(want)) {
		t.Errorf("the reset is in %s, want %s", v.Binding().ResetAt.Sub(start), want)
	}
}
