package state_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// What the tests of this package share: scripts of {at, cost, want}, random limits and histories.

// TestMain makes the random histories the same in every run; -rapid.seed and -rapid.checks ask for
// others.
func TestMain(m *testing.M) {
	if err := testtier.SetFlags("rapid.seed", "20260101", "rapid.checks", "200", "rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// start is on a whole hour, so that aligned windows and sub-buckets start with a script.
var start = time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)

func at(after time.Duration) state.At { return state.At{Micros: start.Add(after).UnixMicro()} }

func policyOf(limits ...limit.Limit) *limit.Policy { return &limit.Policy{Limits: limits} }

// step is one take of a script. Want is what say makes of the verdict; empty: not looked at.
type step struct {
	at   time.Duration // after start
	cost int64
	want string
}

// say is a verdict in short: "ok left=9 reset=1m0s", "no left=0 reset=1m0s retry=30s", resets counted from start.
func say(v *state.Verdict) string {
	b := v.Binding()
	text := fmt.Sprintf("left=%d reset=%s", b.Remaining, b.ResetAt.Sub(start))
	if v.Allowed {
		return "ok " + text
	}
	return fmt.Sprintf("no %s retry=%s", text, b.RetryAfter)
}

// sayAll says what every limit says.
func sayAll(v *state.Verdict) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%t", v.Allowed)
	for s := range v.All() {
		fmt.Fprintf(&b, " [%s left=%d reset=%s retry=%s]", s.Limit, s.Remaining, s.ResetAt.Sub(start), s.RetryAfter)
	}
	return b.String()
}

// play runs a script on s. Beside the script it holds every take to this: a peek foretells it, and whoever decodes
// the state that it left behind says the same.
func play(t *testing.T, s *state.State, p *limit.Policy, steps []step) {
	t.Helper()
	for i, step := range steps {
		now := at(step.at)
		peeked := s.Clone()
		peek := peeked.Peek(p, now, step.cost)
		v := s.Take(p, now, step.cost)
		if got := say(&v); step.want != "" && got != step.want {
			t.Errorf("step %d, %d at %s: got %q, want %q", i, step.cost, step.at, got, step.want)
		}
		if peek.Allowed != v.Allowed || peek.Binding().RetryAfter != v.Binding().RetryAfter {
			t.Errorf("step %d, %d at %s: took %q, peeked %q", i, step.cost, step.at, say(&v), say(&peek))
		}
		decoded := decode(t, s.String())
		again := decoded.Taken(p, now, step.cost, v.Allowed)
		if sayAll(&again) != sayAll(&v) {
			t.Errorf("step %d, %d at %s: took %s, decoded %s", i, step.cost, step.at, sayAll(&v), sayAll(&again))
		}
	}
}

func decode(t rapid.TB, text string) state.State {
	t.Helper()
	s, err := state.ParseState(text)
	if err != nil {
		t.Fatalf("ParseState(%q): %v", text, err)
	}
	return s
}

// drawLimit draws a valid limit: short windows, so that histories cross them, and awkward rates.
func drawLimit(t *rapid.T) limit.Limit {
	max := rapid.OneOf(rapid.Int64Range(1, 20), rapid.SampledFrom([]int64{1000, 1 << 46})).Draw(t, "max")
	switch rapid.SampledFrom([]string{"first", "aligned", "staggered", "sliding", "bucket"}).Draw(t, "kind") {
	case "first":
		return limit.Fixed(max, drawWindow(t))
	case "aligned":
		return limit.Fixed(max, drawWindow(t)).Aligned()
	case "staggered":
		return limit.Fixed(max, drawWindow(t)).Staggered()
	case "sliding":
		return drawSliding(t, max)
	}
	return drawBucket(t)
}

func drawWindow(t *rapid.T) time.Duration {
	return time.Duration(rapid.SampledFrom([]int{1, 7, 100, 1000, 90_000}).Draw(t, "window")) * time.Millisecond
}

func drawSliding(t *rapid.T, max int64) limit.Limit {
	precision := time.Duration(rapid.SampledFrom([]int{1, 7, 100, 1000}).Draw(t, "precision")) * time.Millisecond
	n := rapid.SampledFrom([]int{1, 2, 3, 5, 10, 120}).Draw(t, "sub-buckets")
	return limit.Sliding(max, time.Duration(n)*precision, precision)
}

func drawBucket(t *rapid.T) limit.Limit {
	rates := []limit.Limit{
		limit.TokenBucket(10, time.Second, 1), limit.TokenBucket(3, time.Second, 1),
		limit.TokenBucket(7, 24*time.Hour, 1), limit.TokenBucket(999_983, time.Second, 1),
		limit.TokenBucket(1, 7*time.Microsecond, 1), limit.TokenBucket(1<<52, time.Hour, 1),
		limit.TokenBucket(13, 11*time.Millisecond, 1),
	}
	l := rapid.SampledFrom(rates).Draw(t, "rate")
	l.Burst = rapid.OneOf(rapid.Int64Range(1, 20), rapid.SampledFrom([]int64{1000, 12_347})).Draw(t, "burst")
	return l
}

func drawPolicy(t *rapid.T, most int) *limit.Policy {
	limits := rapid.SliceOfNDistinct(rapid.Custom(drawLimit), 1, most, func(l limit.Limit) string {
		return string(state.AppendID(nil, &l))
	}).Draw(t, "limits")
	room := int64(limit.MaxPolicySubBuckets)
	limits = slices.DeleteFunc(limits, func(l limit.Limit) bool {
		n := int64(0)
		if l.Algorithm == limit.SlidingWindow {
			n = int64(l.Window / l.Precision)
		}
		if n > room {
			return true
		}
		room -= n
		return false
	})
	p := limit.Policy{Name: "drawn", Limits: limits}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return &p
}

// world is one key under one policy, a clock that only goes forward, and what was charged.
type world struct {
	policy  *limit.Policy
	state   state.State
	now     state.At
	cost    int64         // of the last take
	last    state.Verdict // of the last take or peek
	charges []*charge
}

// charge is an admitted take with what its refund has asked back.
type charge struct {
	at      state.At
	cost    int64
	asked   int64
	settled bool // its receipt has been used
	receipt state.Receipt
}

func (c *charge) net() int64 { return c.cost - c.asked }

func drawWorld(t *rapid.T, most int) *world {
	return &world{policy: drawPolicy(t, most), now: state.At{
		Micros: start.UnixMicro() + rapid.Int64Range(0, 2_000_000).Draw(t, "start"),
		Phase:  rapid.Uint64().Draw(t, "phase"),
	}}
}

// tick lets time pass: not at all, a little, about to where a limit changes its mind, or far.
func (w *world) tick(t *rapid.T) {
	w.now.Micros += w.drawPause(t)
}

func (w *world) drawPause(t *rapid.T) int64 {
	l := &w.policy.Limits[rapid.IntRange(0, len(w.policy.Limits)-1).Draw(t, "whose")]
	part := rapid.Int64Range(0, 100).Draw(t, "part")
	switch rapid.IntRange(0, 7).Draw(t, "pause") {
	case 0:
		return 0
	case 1:
		return part
	case 2:
		return l.Window.Microseconds() * part / 80
	case 3:
		return l.Precision.Microseconds()*part/80 + l.Window.Microseconds()/1000*part
	}
	var moments []int64
	for s := range w.last.All() {
		moments = append(moments, s.RetryAfter.Microseconds(), s.ResetAt.UnixMicro()-w.now.Micros)
	}
	if len(moments) == 0 {
		return 0
	}
	pause := rapid.SampledFrom(moments).Draw(t, "moment") + rapid.Int64Range(-1, 1).Draw(t, "off by")
	return max(pause, 0)
}

// drawCost draws a cost that every limit can hold: often 1, often all there is.
func (w *world) drawCost(t *rapid.T) int64 {
	quota := limit.MaxCount
	for i := range w.policy.Limits {
		quota = min(quota, w.policy.Limits[i].Quota())
	}
	cost := rapid.OneOf(
		rapid.Just(int64(1)), rapid.Int64Range(1, 5), rapid.Int64Range(1, quota), rapid.Just(quota), rapid.Just(quota/2),
	).Draw(t, "cost")
	return min(max(cost, 1), quota)
}

func (w *world) take(t *rapid.T) state.Verdict {
	w.cost = w.drawCost(t)
	w.last = w.state.Take(w.policy, w.now, w.cost)
	if w.last.Allowed {
		w.charges = append(w.charges, &charge{at: w.now, cost: w.cost, receipt: w.last.Receipt()})
	}
	return w.last
}

// drawOpen draws a charge whose receipt has not been used, or nil; one of the newest rather than an old one.
func (w *world) drawOpen(t *rapid.T) *charge {
	back := rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, 50)).Draw(t, "which charge")
	for i := len(w.charges) - 1; i >= 0; i-- {
		if c := w.charges[i]; !c.settled {
			if back--; back == 0 {
				return c
			}
		}
	}
	return nil
}

// refund uses the receipt of some charge, for a part of it, all of it, or for more than it was.
func (w *world) refund(t *rapid.T) (c *charge, asked int64) {
	if c = w.drawOpen(t); c == nil {
		return nil, 0
	}
	amount := rapid.OneOf(rapid.Int64Range(1, c.cost), rapid.Just(c.cost), rapid.Just(c.cost+3)).Draw(t, "amount")
	c.settled, c.asked = true, min(amount, c.cost)
	w.state.Refund(w.now, &c.receipt, amount)
	return c, c.asked
}

// reset is an operator's: what was charged before is given back, its receipts are void.
func (w *world) reset() {
	w.state.Reset(w.policy, w.now)
	for _, c := range w.charges {
		c.settled, c.asked = true, c.cost
	}
}

// live runs a history of steps of the given kinds, some dozens, and looks after each.
func (w *world) live(t *rapid.T, kinds string, look func(kind string)) {
	repeat(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(strings.Fields(kinds)).Draw(t, "step")
		switch kind {
		case "tick":
			w.tick(t)
		case "take":
			w.take(t)
		case "peek":
			w.last = w.state.Peek(w.policy, w.now, w.drawCost(t))
		case "charge":
			w.charge(t)
		case "refund":
			w.refund(t)
		case "reset":
			w.reset()
		case "max":
			w.changeMax(t)
		case "rate":
			w.changeRate(t)
		case "code":
			s, err := state.ParseState(w.state.String())
			if err != nil || !s.Equal(&w.state) {
				t.Fatalf("decoded %q as %q, %v", w.state.String(), s.String(), err)
			}
			w.state = s
		default:
			t.Fatalf("no step %q", kind)
		}
		look(kind)
	})
}

func repeat(t *rapid.T, step func(t *rapid.T)) {
	t.Repeat(map[string]func(*rapid.T){"step": step})
}

// changeMax gives every limit another Max or Burst, as a deploy does; what is counted stays.
func (w *world) changeMax(t *rapid.T) {
	p := limit.Policy{Name: w.policy.Name}
	for _, l := range w.policy.Limits {
		if n := rapid.Int64Range(1, 30).Draw(t, "new"); l.Algorithm == limit.Bucket {
			l.Burst = n
		} else {
			l.Max = n
		}
		p.Limits = append(p.Limits, l)
	}
	w.policy = &p
}

// changeRate gives every bucket another rate.
func (w *world) changeRate(t *rapid.T) {
	p := limit.Policy{Name: w.policy.Name}
	for _, l := range w.policy.Limits {
		if was := l; l.Algorithm == limit.Bucket {
			l.Max = rapid.SampledFrom([]int64{1, 3, 10, 999_983, 1 << 52}).Draw(t, "new")
			if l.Validate() != nil {
				l = was
			}
		}
		p.Limits = append(p.Limits, l)
	}
	w.policy = &p
}

// settled is the state as a reader at now sees it: without what is over.
func settled(s *state.State, _ *limit.Policy, now state.At) state.State {
	return state.Merge(*s, state.State{}, now)
}
