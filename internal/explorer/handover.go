package explorer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Handover is the world of one key that moves between places. Any request of a process may act under any version, older or newer
// than that of its last one. Of two places, either may be the answer of a flag under any version. Of three, version v belongs to
// place (v-1) modulo 3.
type Handover struct {
	Places    int // 2: a dual.Dual moves the key; 3: the router's protocol does
	Processes int
	Takes     int // of each process; Max is one less than all of them together
	Refunds   int // of each process
	Versions  int
	Faults    int // messages lost, late or repeated, and crashes
	Plant     Plant
}

// Explore searches this world for stories of at most depth steps in which more than Max is admitted without being Bounded, or
// counts are lost or made up, or a request has no verdict without a fault.
func (h Handover) Explore(depth int) Report { return explore(depth, h.begin) }

// Shortest is Explore for the shortest such story.
func (h Handover) Shortest(depth int) Report { return shortest(depth, h.begin) }

type handoverWorld struct {
	Handover
	policy    *limit.Policy
	places    []state.State
	processes []*process
	underWay  []message // late or repeated
	faults    int

	exact    int64 // charged with what was counted before
	alone    int64 // charged without it, and Bounded
	returned int64
	err      error // of the last step
}

// handoverNow is when all of this happens: no window ends.
const handoverNow = int64(1_800_000_000_000_000)

func (h Handover) begin() world {
	w := &handoverWorld{Handover: h, places: make([]state.State, h.Places), policy: &limit.Policy{
		Name: "p", Limits: []limit.Limit{limit.PerHour(int64(h.Processes*h.Takes) - 1)},
	}}
	for i := range h.Processes {
		w.processes = append(w.processes, &process{world: w, name: string(rune('a' + i))})
	}
	return w
}

func (w *handoverWorld) close() {
	for _, p := range w.processes {
		p.crash()
	}
}

// process makes one request after the other. A request is a coroutine that stops at each message.
type process struct {
	world    *handoverWorld
	name     string
	takes    int // made
	refunds  int
	receipts []state.Receipt
	request  *request
}

// request is what a process has under way.
type request struct {
	kind    byte // 't' or 'r'
	version int
	place   int    // where the key is under this version
	replies []byte // how its messages ended so far
	message message
	answer  answer
	send    func(struct{}) bool
	next    func() (struct{}, bool)
	stop    func()
	faulty  bool // one of its messages had a fault
	outcome backend.Result
	err     error
}

func (w *handoverWorld) steps() (all []step) {
	for _, p := range w.processes {
		if p.request == nil {
			all = append(all, w.begins(p)...)
			continue
		}
		m := p.request.message
		all = append(all, step{p.name + ": " + m.String(), func() error { return w.deliver(p, w.carryOut(m)) }})
		if w.faults == w.Faults {
			continue
		}
		fault := func(name string, do func() error) {
			all = append(all, step{p.name + ": " + m.String() + " " + name, func() error {
				w.faults++
				p.request.faulty = true
				return do()
			}})
		}
		unanswered := func() error { return w.deliver(p, answer{err: m.unanswered()}) }
		fault("is lost", unanswered)
		fault("is carried out, and the reply is lost", func() error { w.carryOut(m); return unanswered() })
		fault("is late", func() error { w.underWay = append(w.underWay, m.clone()); return unanswered() })
		fault("is never sent, for the process crashes", func() error { p.crash(); return nil })
		fault("is carried out, and the process crashes", func() error { w.carryOut(m); p.crash(); return w.check() })
		if m.kind == 's' || m.kind == 'd' { // what may be repeated
			fault("is carried out, and comes once more later", func() error {
				w.underWay = append(w.underWay, m.clone())
				return w.deliver(p, w.carryOut(m))
			})
		}
	}
	for i, m := range w.underWay {
		all = append(all, step{m.String() + " arrives late", func() error {
			w.underWay = append(w.underWay[:i:i], w.underWay[i+1:]...)
			w.carryOut(m)
			return w.check()
		}})
	}
	return all
}

// begins are the requests that a process can begin.
func (w *handoverWorld) begins(p *process) (all []step) {
	for version := 1; version <= w.Versions; version++ {
		places := []int{(version - 1) % w.Places}
		if w.Places == 2 {
			places = []int{0, 1}
		}
		for _, place := range places {
			under := fmt.Sprintf("under version %d for %c", version, 'A'+place)
			if p.takes < w.Takes {
				all = append(all, step{fmt.Sprintf("%s takes %s", p.name, under), func() error {
					p.takes++
					p.begin(&request{kind: 't', version: version, place: place}, nil)
					return nil
				}})
			}
			if p.refunds < w.Refunds && len(p.receipts) > 0 {
				all = append(all, step{fmt.Sprintf("%s gives back %s", p.name, under), func() error {
					p.refunds++
					receipt := p.receipts[0]
					p.receipts = p.receipts[1:]
					p.begin(&request{kind: 'r', version: version, place: place}, &receipt)
					return nil
				}})
			}
		}
	}
	return all
}

// begin runs a request up to its first message.
func (p *process) begin(r *request, receipt *state.Receipt) {
	p.request = r
	r.next, r.stop = iter.Pull(func(yield func(struct{}) bool) {
		r.send = func(s struct{}) bool { return yield(s) }
		mover := p.mover()
		req := backend.Request{Key: "k", Policy: p.world.policy, Cost: 1}
		if receipt == nil {
			r.outcome, r.err = mover.Take(context.Background(), req)
		} else {
			r.err = mover.Refund(context.Background(), req, *receipt, 1)
		}
	})
	p.proceed()
}

// proceed runs the request up to its next message or its end.
func (p *process) proceed() {
	r := p.request
	if _, more := r.next(); more {
		return
	}
	p.request = nil
	switch {
	case r.err != nil && !r.faulty:
		p.world.err = fmt.Errorf("%s has no verdict without a fault: %w", p.name, r.err)
	case r.err == nil && r.kind == 't' && r.outcome.Allowed:
		p.receipts = append(p.receipts, r.outcome.Receipt())
	}
}

func (p *process) crash() {
	if p.request != nil {
		p.request.stop()
		p.request = nil
	}
}

var errCrashed = errors.New("the process has crashed")

// ask sends a message in the coroutine of the request, and returns its answer.
func (p *process) ask(m message) answer {
	r := p.request
	r.message = m.clone()
	if r.send == nil || !r.send(struct{}{}) {
		r.send = nil
		return answer{err: errCrashed}
	}
	return r.answer
}

// deliver gives a process the answer to its message.
func (w *handoverWorld) deliver(p *process, a answer) error {
	r := p.request
	r.answer = a
	r.replies = append(r.replies, r.message.kind, byte('0'+r.message.place), outcome(a))
	p.proceed()
	return w.check()
}

func outcome(a answer) byte {
	switch {
	case a.err == nil && a.result.Allowed:
		return '+'
	case a.err == nil:
		return '-'
	case errors.Is(a.err, state.ErrFloorWanted):
		return 'w'
	}
	if moved, ok := errors.AsType[*state.MovedError](a.err); ok {
		return byte('0' + moved.Version)
	}
	return '?'
}

// carryOut is what a place does with a message.
func (w *handoverWorld) carryOut(m message) (a answer) {
	at, s := state.At{Micros: handoverNow}, &w.places[m.place]
	move := m.req.Move
	switch m.kind {
	case 't':
		if w.Plant == SealIgnored {
			s.Unfence(move.Mover)
			move = state.Move{}
		}
		if w.Plant == FloorDropped && move.Step == state.Adopt {
			m.req.Floor = nil
		}
		if _, a.err = s.Arrive(w.policy, at, move, m.req.Floor, true); a.err != nil {
			return a
		}
		a.result = backend.Result{Verdict: s.Take(w.policy, at, m.req.Cost), Now: at.Micros, State: s.Clone(), Source: backend.Primary}
		switch {
		case !a.result.Allowed:
		case move.Step == state.WithoutFloor:
			w.alone += m.req.Cost
		default:
			w.exact += m.req.Cost
		}
	case 'd':
		if w.Plant == FloorDropped {
			m.floor = state.State{}
		}
		_, a.err = s.Arrive(w.policy, at, move, &m.floor, false)
	case 'r':
		if move.Step == state.Adopt {
			move.Step = state.Ask
		}
		if _, a.err = s.Enter(at, move); a.err == nil {
			used := w.used(s)
			s.Refund(at, &m.receipt, m.amount)
			w.returned += used - w.used(s)
			if w.Plant == RefundTwice {
				s.Refund(at, &m.receipt, m.amount)
			}
		}
	case 's':
		if w.Plant == SealForgotten {
			sealed := s.Clone()
			_, a.err = sealed.Seal(at, move)
		} else {
			_, a.err = s.Seal(at, move)
		}
		a.snapshot = backend.Snapshot{State: s.Clone(), Now: at.Micros, Source: backend.Primary}
	}
	return a
}

// used is what a state counts as used.
func (w *handoverWorld) used(s *state.State) int64 {
	c := s.Clone()
	v := c.Peek(w.policy, state.At{Micros: handoverNow}, 1)
	return w.policy.Limits[0].Max - v.Binding().Remaining
}

// check compares the book with what the places know together.
func (w *handoverWorld) check() error {
	if w.err != nil {
		return w.err
	}
	top := w.policy.Limits[0].Max
	if net := w.exact - w.returned; net > top {
		return fmt.Errorf("%d admitted of %d without a word of doubt", net, top)
	}
	var all state.State
	for _, s := range w.places {
		all = state.Merge(all, s, state.At{Micros: handoverNow})
	}
	if used := w.used(&all); w.alone == 0 && used != w.exact-w.returned {
		return fmt.Errorf("the places together count %d used; charged and not given back is %d", used, w.exact-w.returned)
	}
	return nil
}

func (w *handoverWorld) state(b []byte) []byte {
	for i := range w.places {
		b, _ = w.places[i].AppendText(append(b, '|'))
	}
	for _, m := range w.underWay {
		b = m.append(append(b, '~'))
	}
	for _, n := range []int64{int64(w.faults), w.exact, w.alone, w.returned} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	for _, p := range w.processes {
		b = append(b, '/', byte('0'+p.takes), byte('0'+p.refunds))
		for i := range p.receipts {
			_, position, _ := p.receipts[i].Charge(0)
			b = strconv.AppendInt(append(b, ','), position, 10)
		}
		if r := p.request; r != nil {
			b = append(b, r.kind, byte('0'+r.version), byte('0'+r.place))
			b = append(b, r.replies...)
			b = strconv.AppendBool(b, r.faulty)
			b = r.message.append(b)
		}
	}
	return b
}

// settle is how long fences are kept at least: longer than this world lasts.
const settle = time.Hour
