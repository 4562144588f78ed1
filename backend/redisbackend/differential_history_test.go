//go:build unix

package redisbackend_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// An operation is drawn ahead of the run, so that one can be left out and the others stay what they are. What depends
// on the run is drawn as a number, of which the run takes the remainder.
type operation struct {
	kind   string
	policy int // of history.policies
	pause  uint64
	pause2 uint64
	cost   uint64
	cost2  uint64
	pick   uint64
	pick2  uint64
	move   state.Move
	past   []state.Move // what the floor has been through: adopted under a move, or sealed if it only asks
}

// A history is what happens to one key.
type history struct {
	key      string
	start    int64 // Unix microseconds
	policies []*limit.Policy
	ops      []operation
	worn     bool // the first floors know of counts that have almost run out of numbers
}

// horizon is near the last moment that a number can hold; a bucket's arrival time and credit must stay below that.
const horizon = limit.MaxCount - 4*int64(limit.MaxWindow/time.Microsecond)

func drawHistory(seed, n uint64) *history {
	r := rand.New(rand.NewPCG(seed, n))
	h := &history{key: "h" + strconv.FormatUint(n, 10), start: backendtesting.Start.UnixMicro() + r.Int64N(7_200_000_000)}
	switch r.IntN(40) {
	case 0:
		h.start = r.Int64N(20_000_000) // soon after 1970
	case 1:
		h.start = horizon - r.Int64N(7_200_000_000)
	}
	big := r.IntN(6) == 0
	first, variants, restless, lives := drawLimits(r, 1+r.IntN(4), big), r.IntN(4), false, false
	switch narrow := r.IntN(100); {
	case narrow == 0:
		first = drawLimits(r, limit.MaxLimits, big)
	case narrow < 10: // a closer look at the sub-buckets
		for first = drawLimits(r, 1, big); first[0].Algorithm != limit.SlidingWindow; {
			first = drawLimits(r, 1, big)
		}
	case narrow < 25: // and at fractions that outlive the rate that they were counted at
		per := time.Duration(oneOf(r, 1_000_003, 60_000_000, 3_600_000_000)) * time.Microsecond
		first = []limit.Limit{limit.TokenBucket(oneOf(r, 7, 13, 97, 999_983), per, 2+r.Int64N(20))}
		slower := []limit.Limit{limit.TokenBucket(oneOf(r, 1, 2, 3, 5), per, 2+r.Int64N(20))}
		h.policies = append(h.policies, &limit.Policy{Name: "p", Limits: slower})
		variants, restless = 0, true
	case narrow < 35: // and at lives of a bucket
		per := time.Duration(oneOf(r, 1000, 11_000, 1_000_000)) * time.Microsecond
		first = []limit.Limit{limit.TokenBucket(oneOf(r, 1, 3, 10), per, 1+r.Int64N(12))}
		variants, lives = 0, true
	}
	h.policies = append(h.policies, &limit.Policy{Name: "p", Limits: first})
	for range variants {
		from := h.policies[r.IntN(len(h.policies))].Limits
		h.policies = append(h.policies, &limit.Policy{Name: "p", Limits: changeLimits(r, from, big)})
	}
	kinds := []string{
		"take", "take", "take", "take", "take", "take", "floor", "floor", "floor", "refund", "refund", "refund",
		"charge", "charge", "charge", "charge floor", "reset", "grant", "seed", "peek", "load", "copy", "copy", "copy refund", "copy reset", "copy grant", "lose", "spoil",
	}
	moving := rand.New(rand.NewPCG(n, seed))
	moves := moving.IntN(3) == 0
	if moves {
		kinds = append(kinds, "seal", "seal", "seed", "floor", "floor")
	}
	h.worn = r.IntN(12) == 0
	current := 0
	for range 4 + r.IntN(24) {
		if restless || r.IntN(6) == 0 {
			current = r.IntN(len(h.policies))
		}
		op := operation{
			kind: kinds[r.IntN(len(kinds))], policy: current, pause: r.Uint64(), pause2: r.Uint64(),
			cost: r.Uint64(), cost2: r.Uint64(), pick: r.Uint64(), pick2: r.Uint64(),
		}
		if restless && r.IntN(4) > 0 {
			op.pause = 0
		}
		if lives && r.IntN(8) > 0 {
			op.kind = []string{"take", "take", "take", "refund", "refund", "floor"}[r.IntN(6)]
			op.pause = []uint64{0, 0, 0, 9, 13, 15}[r.IntN(6)] // stay, to where something is over, and back
			op.cost = uint64(3 + r.IntN(2))
			op.pick = 6 // a floor from before
		}
		if moves && (op.kind == "seal" || moving.IntN(4) > 0) {
			op.move = drawMove(moving)
		}
		if moves {
			op.past = drawPast(moving)
		}
		h.ops = append(h.ops, op)
	}
	return h
}

// drawPlainHistory is one of a key under limits whose takes may go together with others; mostly a single fixed one, and
// else up to four.
func drawPlainHistory(seed, n uint64) *history {
	r := rand.New(rand.NewPCG(^seed, n))
	h := &history{key: "p" + strconv.FormatUint(n, 10), start: backendtesting.Start.UnixMicro() + r.Int64N(7_200_000_000)}
	switch r.IntN(20) {
	case 0:
		h.start = r.Int64N(20_000_000)
	case 1:
		h.start = horizon - r.Int64N(7_200_000_000)
	}
	big, many := r.IntN(4) == 0, r.IntN(5) < 3
	draw := func() []limit.Limit {
		for {
			count := 1
			if many {
				count += r.IntN(4)
			}
			limits := drawLimits(r, count, big)
			if isPlain(limits) && (many || limits[0].Algorithm == limit.FixedWindow) {
				return limits
			}
		}
	}
	h.policies = append(h.policies, &limit.Policy{Name: "p", Limits: draw()})
	for range r.IntN(3) { // others: the same with another max, or some that come and go
		limits := draw()
		if n := r.IntN(3); n > 0 {
			limits = changeLimits(r, h.policies[0].Limits, big)
			limits = limits[:min(n, len(limits))]
		}
		h.policies = append(h.policies, &limit.Policy{Name: "p", Limits: limits})
	}
	kinds := []string{
		"take", "take", "take", "take", "take", "take", "take", "take", "together", "together", "together", "together",
		"together", "refund", "refund", "reset", "grant", "floor", "floor", "seed", "peek", "load", "copy", "copy refund", "copy reset",
		"copy grant", "lose", "spoil",
	}
	moves := r.IntN(3) == 0
	if moves {
		kinds = append(kinds, "seal")
	}
	h.worn = r.IntN(8) == 0
	current := 0
	for range 4 + r.IntN(24) {
		if r.IntN(6) == 0 {
			current = r.IntN(len(h.policies))
		}
		op := operation{
			kind: kinds[r.IntN(len(kinds))], policy: current, pause: r.Uint64(), pause2: r.Uint64(),
			cost: r.Uint64(), cost2: r.Uint64(), pick: r.Uint64(), pick2: r.Uint64(),
		}
		if moves && (op.kind == "seal" || r.IntN(4) == 0) {
			op.move = drawMove(r)
		}
		if moves && r.IntN(2) == 0 {
			op.past = drawPast(r)
		}
		h.ops = append(h.ops, op)
	}
	return h
}

func drawMove(r *rand.Rand) state.Move {
	steps := []state.Step{state.Ask, state.Ask, state.Adopt, state.Adopt, state.WithoutFloor}
	return state.Move{
		Mover:   state.Mover(r.IntN(2)),
		Version: oneOf(r, 1, 2, 3, 4, 5, 6, limit.MaxCount-1, limit.MaxCount),
		Step:    steps[r.IntN(len(steps))],
		TTL:     time.Duration(oneOf(r, 0, 1, 1500, 100_000, 60_000_000, 3_600_000_000)) * time.Microsecond,
	}
}

// drawPast is what a place that a floor comes from has seen of the two movers.
func drawPast(r *rand.Rand) (past []state.Move) {
	for range r.IntN(4) {
		m := drawMove(r)
		m.Step = state.Step(r.IntN(2))
		past = append(past, m)
	}
	return past
}

func drawLimits(r *rand.Rand, n int, big bool) []limit.Limit {
	var limits []limit.Limit
	for len(limits) < n {
		l := drawLimit(r, big)
		same := func(o limit.Limit) bool { return string(state.AppendID(nil, &o)) == string(state.AppendID(nil, &l)) }
		if fits(l, limits) && !slices.ContainsFunc(limits, same) {
			limits = append(limits, l)
		}
	}
	return limits
}

// fits reports whether l may be in a policy with others.
func fits(l limit.Limit, others []limit.Limit) bool {
	n := int64(0)
	for _, l := range append(slices.Clone(others), l) {
		if l.Algorithm == limit.SlidingWindow {
			n += int64(l.Window / l.Precision)
		}
	}
	return l.Validate() == nil && n <= limit.MaxPolicySubBuckets
}

func drawLimit(r *rand.Rand, big bool) limit.Limit {
	window := time.Duration(oneOf(r, 1, 7, 100, 1000, 5000, 60_000, 90_000, 3_600_000)) * time.Millisecond
	if r.IntN(60) == 0 {
		window = limit.MaxWindow
	}
	switch r.IntN(6) {
	case 0:
		return limit.Fixed(drawMax(r, big), window)
	case 1:
		return limit.Fixed(drawMax(r, big), window).Aligned()
	case 2:
		return limit.Fixed(drawMax(r, big), window).Staggered()
	case 3, 4:
		precision := time.Duration(oneOf(r, 1, 7, 100, 1000, 60_000)) * time.Millisecond
		return limit.Sliding(min(drawMax(r, big), 1<<46), time.Duration(oneOf(r, 1, 2, 3, 5, 10, 60, 120))*precision, precision)
	}
	return drawBucket(r, big)
}

func drawMax(r *rand.Rand, big bool) int64 {
	if big {
		return oneOf(r, limit.MaxCount, limit.MaxCount-1, limit.MaxCount-r.Int64N(100), 1<<52, 1<<46, 1<<46-1)
	}
	return oneOf(r, 1+r.Int64N(20), 1+r.Int64N(20), 1+r.Int64N(5), 1000)
}

func drawBucket(r *rand.Rand, big bool) limit.Limit {
	per := time.Duration(oneOf(r, 1, 7, 1000, 11_000, 1_000_000, 1_000_003, 60_000_000, 86_400_000_000)) * time.Microsecond
	rate := drawRate(r, big)
	burst := drawMax(r, big)
	if big && r.IntN(2) == 0 {
		burst = 1 + r.Int64N(limit.MaxCount)
	}
	return limit.TokenBucket(rate, per, burst)
}

func drawRate(r *rand.Rand, big bool) int64 {
	if big {
		return oneOf(r, 1<<52, 1<<52-1, 1<<52-1-r.Int64N(1000), 1<<51+1, 1+r.Int64N(1<<52))
	}
	return oneOf(r, 1, 2, 3, 7, 10, 13, 999_983, 1+r.Int64N(100), 1+r.Int64N(1_000_000))
}

func oneOf(r *rand.Rand, of ...int64) int64 { return of[r.IntN(len(of))] }

// changeLimits is what a deploy makes of a policy: new numbers, another order, limits that come and go.
func changeLimits(r *rand.Rand, from []limit.Limit, big bool) []limit.Limit {
	limits := slices.Clone(from)
	if r.IntN(2) == 0 {
		r.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	}
	if r.IntN(3) == 0 {
		limits = limits[:1+r.IntN(len(limits))]
	}
	for i := range limits {
		l := limits[i]
		switch {
		case r.IntN(2) == 0:
			continue
		case l.Algorithm == limit.Bucket:
			l.Max, l.Burst = drawRate(r, big), drawMax(r, big)
		default:
			l.Max = drawMax(r, big)
		}
		if l.Validate() == nil {
			limits[i] = l
		}
	}
	for range r.IntN(3) {
		l := drawLimit(r, big)
		same := func(o limit.Limit) bool { return string(state.AppendID(nil, &o)) == string(state.AppendID(nil, &l)) }
		if fits(l, limits) && !slices.ContainsFunc(limits, same) && len(limits) < limit.MaxLimits {
			limits = slices.Insert(limits, r.IntN(len(limits)+1), l)
		}
	}
	return limits
}

// worn is a state that charges and refunds have brought to within left of the largest number.
func (c *contest) worn(p *limit.Policy, left int64) state.State {
	var text []byte
	for i := range p.Limits {
		l := &p.Limits[i]
		charged := limit.MaxCount - left
		if l.Algorithm == limit.Bucket && c.at.Micros < backendtesting.Start.UnixMicro()/2 {
			continue // a time.Duration doesn't reach that far
		}
		text = append(state.AppendID(text, l), ':')
		switch l.Algorithm {
		case limit.SlidingWindow:
			text = fmt.Appendf(text, "%d,1,%d-%d;", state.End(l, c.at), charged, charged-1)
		case limit.Bucket:
			credit := min(1<<52-1, limit.MaxCount-c.at.Micros-2*limit.MaxWindow.Microseconds()) - left
			text = fmt.Appendf(text, "%d,1,1,%d,%d;", c.at.Micros+1, c.at.Micros+1+credit, credit)
		default:
			text = fmt.Appendf(text, "%d,%d-%d;", state.End(l, c.at), charged, charged-1)
		}
	}
	s, err := state.ParseState(text)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return s
}
