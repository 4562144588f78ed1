package explorer

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Buckets is the world of one token bucket at one server. Requests may bring a time that was read before they waited in a queue,
// and a floor that is a copy of the state from any earlier moment.
type Buckets struct {
	Burst   int64
	Takes   int // requests altogether
	Refunds int
	Ticks   int // of time; a tick refills one token
	Late    int // ticks by which the time of a request may be old
	Floors  int // copies kept at the same time
	Plant   Plant
}

// Explore searches this world for stories of at most depth steps in which an interval holds more than burst + rate x T, or a
// copy from an earlier moment changes anything.
func (b Buckets) Explore(depth int) Report { return explore(depth, b.begin) }

// Shortest is Explore for the shortest such story.
func (b Buckets) Shortest(depth int) Report { return shortest(depth, b.begin) }

const tick = int64(1_000_000) // in microseconds

type bucketWorld struct {
	Buckets
	policy  *limit.Policy
	server  state.State
	floors  []state.State
	now     int
	takes   int
	charges []bucketCharge
	refunds int
}

type bucketCharge struct {
	at      int // when it was admitted
	cost    int64
	receipt state.Receipt
	back    bool
}

func (b Buckets) begin() world {
	return &bucketWorld{Buckets: b, policy: &limit.Policy{
		Name: "p", Limits: []limit.Limit{limit.TokenBucket(1, time.Second, b.Burst)},
	}}
}

func (w *bucketWorld) close() {}

func (w *bucketWorld) at(late int) state.At {
	return state.At{Micros: 1_000*tick + int64(w.now-late)*tick}
}

func (w *bucketWorld) steps() (all []step) {
	if w.now < w.Ticks {
		all = append(all, step{"a tick", func() error { w.now++; return nil }})
	}
	for late := range min(w.Late, w.now) + 1 {
		if w.takes < w.Takes {
			for _, cost := range []int64{1, w.Burst} {
				all = append(all, step{fmt.Sprintf("take %d, %d late", cost, late), func() error { return w.take(late, cost, nil) }})
				for i := range w.floors {
					all = append(all, step{fmt.Sprintf("take %d, %d late, with floor %d: %s", cost, late, i, w.floors[i].String()),
						func() error { return w.take(late, cost, &w.floors[i]) }})
				}
			}
		}
		if w.refunds < w.Refunds {
			for i := range w.charges {
				if !w.charges[i].back {
					all = append(all, step{fmt.Sprintf("refund charge %d, %d late", i, late), func() error { w.refund(late, i); return nil }})
				}
			}
		}
	}
	if len(w.floors) < w.Floors && !w.server.Empty() {
		all = append(all, step{"keep a copy", func() error { w.floors = append(w.floors, w.server.Clone()); return nil }})
	}
	return all
}

func (w *bucketWorld) take(late int, cost int64, floor *state.State) error {
	at := w.at(late)
	w.takes++
	if floor != nil {
		without := w.server.Clone()
		before := remains(w.policy, &without, at)
		joined := w.join(at, floor)
		w.server = joined
		if after := remains(w.policy, &joined, at); after.Remaining != before.Remaining || !after.ResetAt.Equal(before.ResetAt) {
			return fmt.Errorf("a copy from before changed what remains: %d, full at %s; now %d, full at %s",
				before.Remaining, before.ResetAt.UTC().Format(time.TimeOnly), after.Remaining, after.ResetAt.UTC().Format(time.TimeOnly))
		}
	}
	v := w.server.Take(w.policy, at, cost)
	if !v.Allowed {
		return nil
	}
	w.charges = append(w.charges, bucketCharge{at: w.now, cost: cost, receipt: v.Receipt()})
	return w.check()
}

func remains(p *limit.Policy, s *state.State, at state.At) limit.Status {
	c := s.Clone()
	v := c.Peek(p, at, 1)
	return v.Binding()
}

// join is the server's, or the one that is planted.
func (w *bucketWorld) join(at state.At, floor *state.State) state.State {
	s := w.server.Clone()
	if w.Plant == LivesJoined && !s.Empty() {
		return joinLives(&s, floor)
	}
	s.Join(w.policy, at, floor)
	return s
}

// joinLives takes the larger arrival and the larger credit, of whichever life they are.
func joinLives(a, b *state.State) state.State {
	x, y := parseBucket(a), parseBucket(b)
	arrival, credit := max(x.arrival, y.arrival), max(x.credit, y.credit)
	peak := max(x.peak, y.peak)
	text := fmt.Sprintf("b1s:%d,%d,%d", peak, peak-max(x.peak-x.birth, y.peak-y.birth), peak-max(x.peak-x.seen, y.peak-y.seen))
	if credit > 0 {
		text += fmt.Sprintf(",%d,%d", arrival, credit)
	}
	s, err := state.ParseState(text + ";")
	if err != nil {
		panic(text)
	}
	return s
}

// bucket is the text form of a bucket's state, at a rate of 1.
type bucket struct{ peak, birth, seen, arrival, credit int64 }

func parseBucket(s *state.State) (b bucket) {
	const plain, withCredit = "b1s:%d,%d,%d;", "b1s:%d,%d,%d,%d,%d;"
	text := s.String()
	if _, err := fmt.Sscanf(text, withCredit, &b.peak, &b.birth, &b.seen, &b.arrival, &b.credit); err == nil {
		return b
	}
	if _, err := fmt.Sscanf(text, plain, &b.peak, &b.birth, &b.seen); err != nil {
		panic(text)
	}
	b.arrival = b.peak
	return b
}

func (w *bucketWorld) refund(late, i int) {
	c := &w.charges[i]
	c.back = true
	w.refunds++
	w.server.Refund(w.at(late), &c.receipt, c.cost)
	if w.Plant == RefundTwice {
		w.server.Refund(w.at(late), &c.receipt, c.cost)
	}
}

// check compares the admissions of every interval with burst + rate x T. What was given back within the interval counts for
// nothing. A request that waited in a queue brings an old time, which widens T by as much.
func (w *bucketWorld) check() error {
	last := len(w.charges) - 1
	var sum int64
	for i := last; i >= 0; i-- {
		c := &w.charges[i]
		if !c.back {
			sum += c.cost
		}
		if most := w.Burst + int64(w.charges[last].at-c.at+w.Late); sum > most {
			return fmt.Errorf("%d admitted from tick %d to %d, want at most %d", sum, c.at, w.charges[last].at, most)
		}
	}
	return nil
}

func (w *bucketWorld) state(b []byte) []byte {
	b, _ = w.server.AppendText(b)
	for i := range w.floors {
		b, _ = w.floors[i].AppendText(append(b, '|'))
	}
	b = strconv.AppendInt(append(b, ' '), int64(w.now), 10)
	b = strconv.AppendInt(append(b, ' '), int64(w.takes), 10)
	b = strconv.AppendInt(append(b, ' '), int64(w.refunds), 10)
	for i := range w.charges {
		c := &w.charges[i]
		b = strconv.AppendInt(append(b, ';'), int64(c.at), 10)
		b = strconv.AppendInt(append(b, ','), c.cost, 10)
		b = strconv.AppendBool(append(b, ','), c.back)
		if !c.back {
			end, position, fraction := c.receipt.Charge(0)
			for _, n := range []int64{end, position, fraction} {
				b = strconv.AppendInt(append(b, ','), n, 10)
			}
		}
	}
	return b
}
