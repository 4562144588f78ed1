package explorer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Leases is the world of one key at one server, and of processes that lease quota of it around the end of a window. A process
// knows the server's time from a reading that is up to Lag old, and knows that it can be so old.
type Leases struct {
	Limit     limit.Limit // of seconds, which are the ticks of this world
	Processes int
	Batch     int64
	Fetches   int // of each process
	Takes     int // of each process, without a lease
	Ticks     int
	Lag       int
	Sleeps    int // ticks for which hosts are suspended
	Resets    int
	Faults    int // messages lost or late, and crashes
	Plant     Plant
}

// Explore searches this world for stories of at most depth steps in which a lease is spent after its window, or the server
// counts anything else than what was charged and not given back.
func (l Leases) Explore(depth int) Report { return explore(depth, l.begin) }

// Shortest is Explore for the shortest such story.
func (l Leases) Shortest(depth int) Report { return shortest(depth, l.begin) }

type leaseWorld struct {
	Leases
	policy  *limit.Policy
	server  state.State
	now     int
	charges []leaseCharge
	holders []*holder
	late    []leaseMessage
	slept   int
	resets  int
	faults  int
}

// leaseCharge is a line of the book.
type leaseCharge struct {
	cost, returned int64
	receipt        state.Receipt
	before         int64 // when what is not spent must not be spent any more, in microseconds
	void           bool  // by a reset
}

// holder is a process.
type holder struct {
	lag     int // how old its reading of the server's clock is
	lost    int // ticks that its clock did not count
	fetches int
	takes   int
	lease   lease
	sent    *leaseMessage // the answer is awaited
	answer  *leaseAnswer  // it is on its way
}

type lease struct {
	charge   int // in the book
	left     int64
	spent    int64
	deadline int // by the process's clock
}

// leaseAnswer is that to a take, and what it charged.
type leaseAnswer struct {
	verdict state.Verdict
	charge  int
}

// leaseMessage is a take or a refund.
type leaseMessage struct {
	refund  bool
	cost    int64
	charge  int // of a refund
	said    int // the server's time by the process, when it was sent
	asked   int // when it was sent, by the process's clock
	fetches bool
}

func (l Leases) begin() world {
	w := &leaseWorld{Leases: l, policy: &limit.Policy{Name: "p", Limits: []limit.Limit{l.Limit}}}
	for i := range l.Processes {
		lag := 0
		if i == 0 {
			lag = l.Lag // the first is always late, the others are right: each pair of them is the same world
		}
		w.holders = append(w.holders, &holder{lag: lag})
	}
	return w
}

func (w *leaseWorld) close() {}

// leaseStart is the beginning of a window of any length that divides a day.
const leaseStart = int64(1_799_971_200) * tick

func micros(ticks int) int64 { return leaseStart + int64(ticks)*tick }

func (w *leaseWorld) clock(h *holder) int { return w.now - h.lost }

func (w *leaseWorld) steps() (all []step) {
	add := func(name string, do func() error) {
		all = append(all, step{name, func() error {
			if err := do(); err != nil {
				return err
			}
			return w.check()
		}})
	}
	if w.now < w.Ticks {
		add("a tick", func() error { w.now++; return nil })
	}
	if w.resets < w.Resets && !w.server.Empty() {
		add("the key is reset", func() error { w.resets++; w.reset(); return nil })
	}
	for i, h := range w.holders {
		name := string(rune('a' + i))
		switch {
		case h.answer != nil:
			add(name+" hears the answer", func() error { w.hear(h); return nil })
		case h.sent != nil:
			w.deliveries(name, h, add)
		default:
			w.begins(name, h, add)
		}
		if w.slept < w.Sleeps && w.now < w.Ticks {
			add(name+" sleeps for a tick", func() error {
				w.slept++
				w.now++
				if w.Plant == SleepUnnoticed {
					h.lost++
				}
				return nil
			})
		}
	}
	for i, m := range w.late {
		add(m.String()+" arrives late", func() error {
			w.late = append(w.late[:i:i], w.late[i+1:]...)
			w.carryOut(m)
			return nil
		})
	}
	return all
}

// begins is what a process can begin while no answer is awaited.
func (w *leaseWorld) begins(name string, h *holder, add func(string, func() error)) {
	send := func(m leaseMessage) error {
		m.said, m.asked = w.now-h.lag, w.clock(h)
		h.sent = &m
		return nil
	}
	if h.lease.left > 0 && w.clock(h) < h.lease.deadline {
		add(name+" spends 1", func() error {
			h.lease.left--
			h.lease.spent++
			if c := &w.charges[h.lease.charge]; micros(w.now) >= c.before {
				return fmt.Errorf("spent at tick %d what was to be spent before tick %d", w.now, (c.before-leaseStart)/tick)
			}
			return nil
		})
	}
	if h.lease.left > 0 {
		add(name+" gives back what is left", func() error {
			m := leaseMessage{refund: true, cost: h.lease.left, charge: h.lease.charge}
			h.lease.left = 0
			return send(m)
		})
	}
	if h.lease.left == 0 && h.lease.spent > 0 {
		add(name+" gives back 1 that was spent", func() error {
			h.lease.spent--
			return send(leaseMessage{refund: true, cost: 1, charge: h.lease.charge})
		})
	}
	if h.lease.left == 0 && h.fetches < w.Fetches {
		add(name+" asks for a lease", func() error {
			h.fetches++
			return send(leaseMessage{cost: w.Batch, fetches: true})
		})
	}
	if h.takes < w.Takes {
		add(name+" takes 1", func() error {
			h.takes++
			return send(leaseMessage{cost: 1})
		})
	}
}

// deliveries is what can become of a process's message.
func (w *leaseWorld) deliveries(name string, h *holder, add func(string, func() error)) {
	m := *h.sent
	add(name+": "+m.String(), func() error { h.answer = w.carryOut(m); return nil })
	if w.faults == w.Faults {
		return
	}
	fault := func(what string, do func()) {
		add(name+": "+m.String()+" "+what, func() error { w.faults++; h.sent = nil; do(); return nil })
	}
	fault("is lost", func() {})
	fault("is late", func() { w.late = append(w.late, m) })
	fault("is carried out, and the reply is lost", func() {
		w.carryOut(m)
		if m.refund && w.Plant == ReturnRepeated {
			h.sent = &m
		}
	})
	fault("is carried out, and the process crashes", func() {
		w.carryOut(m)
		*h = holder{lag: h.lag, fetches: h.fetches, takes: h.takes}
	})
}

// carryOut is what the server does with a message, by the time that it brings.
func (w *leaseWorld) carryOut(m leaseMessage) *leaseAnswer {
	at := state.At{Micros: micros(m.said)}
	if m.refund {
		c := &w.charges[m.charge]
		if !c.void && !w.over(c, at.Micros) {
			c.returned = min(c.returned+m.cost, c.cost)
		}
		w.server.Refund(at, &c.receipt, m.cost)
		return new(leaseAnswer)
	}
	v := w.server.Take(w.policy, at, m.cost)
	if v.Allowed {
		w.charges = append(w.charges, leaseCharge{cost: m.cost, receipt: v.Receipt(), before: v.SpendBefore(at.Micros)})
	}
	return &leaseAnswer{v, len(w.charges) - 1}
}

// over reports whether a charge no longer counts.
func (w *leaseWorld) over(c *leaseCharge, now int64) bool {
	end, _, _ := c.receipt.Charge(0)
	return now >= end
}

// hear makes a lease of what was charged, for as long as the process can be sure of.
func (w *leaseWorld) hear(h *holder) {
	a, m := h.answer, h.sent
	h.answer, h.sent = nil, nil
	if !m.fetches || !a.verdict.Allowed {
		return
	}
	since, uncertain := m.asked, w.Lag
	if w.Plant == SinceReply {
		since = w.clock(h)
	}
	if w.Plant == ClockTrusted {
		uncertain = 0
	}
	life := int((a.verdict.SpendBefore(micros(m.said)) - micros(m.said)) / tick)
	h.lease = lease{charge: a.charge, left: m.cost, deadline: since + life - uncertain}
}

func (w *leaseWorld) reset() {
	w.server.Reset(w.policy, state.At{Micros: micros(w.now)})
	for i := range w.charges {
		w.charges[i].void = true
	}
	if w.Plant != ResetForgotten {
		return
	}
	text := w.server.String() // "...,5-5-5;" says that all 5 were given back, and 5 of them by a reset
	if last := strings.LastIndexByte(text, '-'); strings.Count(text, "-") == 2 {
		s, err := state.ParseState(text[:last] + ";")
		if err != nil {
			panic(err)
		}
		w.server = s
	}
}

// check compares the book with the server.
func (w *leaseWorld) check() error {
	now := state.At{Micros: micros(w.now)}
	var want int64
	for i := range w.charges {
		if c := &w.charges[i]; !c.void && !w.over(c, now.Micros) {
			want += c.cost - c.returned
		}
	}
	remains := remains(w.policy, &w.server, now)
	if used := w.Limit.Max - remains.Remaining; used != want {
		return fmt.Errorf("the server counts %d used at tick %d; charged and not given back is %d", used, w.now, want)
	}
	return nil
}

func (m *leaseMessage) String() string {
	if m.refund {
		return fmt.Sprintf("refund %d of charge %d at tick %d", m.cost, m.charge, m.said)
	}
	return fmt.Sprintf("take %d at tick %d", m.cost, m.said)
}

func (w *leaseWorld) state(b []byte) []byte {
	b, _ = w.server.AppendText(b)
	number := func(n int64) { b = strconv.AppendInt(append(b, ' '), n, 10) }
	send := func(m *leaseMessage) {
		b = strconv.AppendBool(append(b, 'm'), m.refund)
		b = strconv.AppendBool(b, m.fetches)
		for _, n := range []int64{m.cost, int64(m.charge), int64(m.said), int64(m.asked)} {
			number(n)
		}
	}
	for _, n := range []int{w.now, w.slept, w.resets, w.faults} {
		number(int64(n))
	}
	for i := range w.charges {
		c := &w.charges[i]
		end, position, _ := c.receipt.Charge(0)
		b = append(b, ';')
		for _, n := range []int64{c.cost, c.returned, end, position} {
			number(n)
		}
		b = strconv.AppendBool(b, c.void)
	}
	for _, h := range w.holders {
		b = append(b, '/')
		for _, n := range []int{h.lost, h.fetches, h.takes, h.lease.charge, int(h.lease.left), int(h.lease.spent), h.lease.deadline} {
			number(int64(n))
		}
		if h.sent != nil {
			send(h.sent)
		}
		if a := h.answer; a != nil {
			b = strconv.AppendBool(append(b, 'v'), a.verdict.Allowed)
			number(int64(a.charge))
		}
	}
	for i := range w.late {
		send(&w.late[i])
	}
	return b
}
