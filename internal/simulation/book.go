package simulation

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// book keeps what was charged at servers, asked back below the leases, admitted and given back above them, for each key
// and limit, by the window or sub-bucket that the receipts name. The world's mutex guards it.
type book struct {
	w            *world
	pages        map[string][]*page // of a key: one for each limit
	losses       []*loss
	acknowledged map[place]int64 // the latest charge that anyone heard of
	resets       map[string]int  // of each key
}

// page is of one key and limit.
type page struct {
	limit limit.Limit
	slots map[slot]*count
	ends  []int64     // of windows, in the order of their first charge
	flow  []admission // of a bucket
}

// slot is a window or sub-bucket by its end alone. Of a bucket it is a charge.
type slot struct{ end, position, fraction int64 }

// count is of one slot.
type count struct {
	charged, asked int64 // at servers, and to be given back there
	admitted       int64 // to callers, without what they gave back
	alone          int64 // of charged: without a handover, because the other place was out of reach
	forgiven       int64 // of charged, by resets
	unsure         int64 // of charged, since a server forgot: see loss
}

// admission is one to a bucket.
type admission struct {
	call uint64
	at   int64 // Unix microseconds
	cost int64
}

// trip is one call of a lease into its router.
type trip struct {
	charges int
	alone   bool
	clean   bool // it returned, and said that nothing was charged
}

func newBook(w *world) *book {
	b := &book{w: w, pages: make(map[string][]*page), acknowledged: make(map[place]int64), resets: make(map[string]int)}
	for _, key := range w.keys {
		for _, l := range w.policy.Limits {
			b.pages[key] = append(b.pages[key], &page{limit: l, slots: make(map[slot]*count)})
		}
	}
	return b
}

func (p *page) slotOf(receipt *state.Receipt, i int) slot {
	end, position, fraction := receipt.Charge(i)
	if p.limit.Algorithm == limit.Bucket {
		return slot{end, position, fraction}
	}
	return slot{end: end}
}

func (p *page) at(s slot) *count {
	c := p.slots[s]
	if c == nil {
		c = new(count)
		p.slots[s] = c
	}
	return c
}

// window adds up the slots of the window that a slot is the newest of.
func (p *page) window(s slot) count {
	if p.limit.Algorithm != limit.SlidingWindow {
		return *p.at(s)
	}
	var sum count
	width := p.limit.Precision.Microseconds()
	for end := s.end; end > s.end-p.limit.Window.Microseconds(); end -= width {
		if c := p.slots[slot{end: end}]; c != nil {
			sum.charged += c.charged
			sum.asked += c.asked
			sum.admitted += c.admitted
			sum.alone += c.alone
			sum.forgiven += c.forgiven
			sum.unsure += c.unsure
		}
	}
	return sum
}

// opened notes the end of a first window, and checks that no two windows of a key are alive at once.
func (b *book) opened(key string, p *page, s slot, alone bool) {
	if p.limit.Algorithm != limit.FixedWindow || slices.Contains(p.ends, s.end) {
		return
	}
	for _, end := range p.ends {
		apart := max(end-s.end, s.end-end)
		if apart < p.limit.Window.Microseconds() && !b.w.lossy() && !alone && p.at(slot{end: end}).alone == 0 {
			b.w.violate("%s: two windows of %s at once, their ends %d us apart", key, p.limit, apart)
		}
	}
	p.ends = append(p.ends, s.end)
}

// charged is a charge at a server. It checks promise P7: the server knows of all that was charged and not asked back,
// wherever it was charged, except for what it may have forgotten.
func (b *book) charged(n *node, req *backend.Request, r *backend.Result, t *trip) {
	t.charges++
	alone := req.Move.Step == state.WithoutFloor && req.Move.Version > 0
	t.alone = t.alone || alone
	if t.charges > 1 {
		b.w.violate("P3: a call was charged %d times at %s", t.charges, n.group)
	}
	if t.clean {
		b.w.violate("P3: a call was charged at %s that had said it was not", n.group)
	}
	if req.Move.Version > 0 {
		b.w.report.Moves++
	}
	lost, unsure := b.forgot(n, req.Key), b.post(n, req.Key, req.Cost)
	receipt, i := r.Receipt(), 0
	for status := range r.All() {
		p := b.pages[req.Key][i]
		s := p.slotOf(&receipt, i)
		b.opened(req.Key, p, s, alone)
		c := p.at(s)
		c.charged += req.Cost
		if alone {
			c.alone += req.Cost
		}
		if unsure {
			c.unsure += req.Cost
		}
		i++
		if p.limit.Algorithm == limit.Bucket || alone || b.w.chaos() {
			continue
		}
		sum := p.window(s)
		known, true := p.limit.Max-status.Remaining, sum.charged-sum.asked-sum.forgiven-sum.alone
		if known < true-lost {
			b.w.violate("P7: %s counts %d for %s in %s, where %d were charged and not asked back, and %d may be forgotten",
				n.group, known, req.Key, p.limit, true, lost)
		}
	}
}

// chaos is whether a server may forget that a key has left it, or forget twice, so that no more than promise P4 without
// floors holds.
func (w *world) chaos() bool {
	return w.lossy() && (w.Changes > 0 || w.Failovers+w.Flushes > w.Groups)
}

// returned is the end of a trip.
func (b *book) returned(in *instance, t *trip, r *backend.Result, err error) {
	if err != nil {
		e, ok := errors.AsType[*backend.Error](err)
		t.clean = !ok || !e.MayHaveCharged
	} else {
		t.clean = !r.Allowed
	}
	switch {
	case t.clean && t.charges > 0:
		b.w.violate("P3: %s got the error of an uncharged call for one that was charged: allowed %t, %v", in.name, r.Allowed, err)
	case err == nil && r.Allowed && t.charges != 1:
		b.w.violate("P3: %s was admitted, and charged %d times", in.name, t.charges)
	case err == nil && t.alone && r.Guarantee == backend.Exact:
		b.w.violate("P13: %s got Exact for a charge without a handover", in.name)
	}
}

// asked is a refund on its way to a server. It returns how often the key was reset before.
func (b *book) asked(req *backend.Request, receipt *state.Receipt, amount int64) (resets int) {
	for i, p := range b.pages[req.Key] {
		c := p.at(p.slotOf(receipt, i))
		c.asked += min(amount, receipt.Cost)
		b.backed(req.Key, p, c)
	}
	return b.resets[req.Key]
}

// unasked is a refund that was certainly not sent, or refused: it may be asked for again. If the key was reset since it was
// asked for, the reset gave back that much more than it seemed to.
func (b *book) unasked(req *backend.Request, receipt *state.Receipt, amount int64, resets int) {
	for i, p := range b.pages[req.Key] {
		c := p.at(p.slotOf(receipt, i))
		c.asked -= min(amount, receipt.Cost)
		if b.resets[req.Key] > resets {
			c.forgiven += min(amount, receipt.Cost)
		}
	}
}

// backed checks that what is admitted of a charge is no more than it.
func (b *book) backed(key string, p *page, c *count) {
	if c.admitted > c.charged-c.asked {
		b.w.violate("P6: of %s %d are admitted in %s, where %d were charged and %d of them given back", key, c.admitted, p.limit, c.charged, c.asked)
	}
}

// forgiven is a reset. What was charged may still be admitted: replies are under way, and leases are held.
func (b *book) forgiven(key string) {
	b.resets[key]++
	for _, p := range b.pages[key] {
		for _, c := range p.slots {
			c.forgiven = max(0, c.charged-c.asked)
		}
	}
}

// admitted records the decision that a caller got.
func (b *book) admitted(in *instance, call uint64, req *backend.Request, r *backend.Result) {
	now := time.Now().UnixMicro()
	b.w.note("%s: admits %d of %s, %s", in.name, req.Cost, req.Key, r.Source)
	if in.dead.Load() {
		return // no caller waits for it
	}
	receipt := r.Receipt()
	if receipt.Cost != req.Cost {
		b.w.violate("%s: a receipt of %d for %d", in.name, receipt.Cost, req.Cost)
	}
	for i, p := range b.pages[req.Key] {
		s := p.slotOf(&receipt, i)
		c := p.at(s)
		c.admitted += req.Cost
		b.backed(req.Key, p, c)
		late := now - s.end
		switch p.limit.Algorithm {
		case limit.Bucket:
			at := r.Now
			if r.Source == backend.Leased {
				at, late = now, -1
			}
			p.flow = append(p.flow, admission{call, at, req.Cost})
			continue
		case limit.SlidingWindow:
			late += (p.limit.Window - p.limit.Precision).Microseconds()
		}
		if r.Source == backend.Leased && late >= 0 {
			b.w.violate("P6: %s spent a lease on %s %d us after its time", in.name, p.limit, late)
		}
		b.within(req.Key, p, s)
	}
}

// within checks the quota of a window. What was charged without a handover is joined with the other place's counts later:
// then the larger count of each wins, so that as much as that may be admitted above Max, also where it was given back. It
// was reported as Bounded, see returned; so where there is nothing of it, all that is admitted is as exact as it was said to be.
func (b *book) within(key string, p *page, s slot) {
	sum, most := p.window(s), p.limit.Max
	most += sum.forgiven
	if b.w.chaos() {
		most += p.limit.Max * int64(len(b.losses))
	} else {
		most += sum.unsure + b.unheard(key)
	}
	if sum.admitted > most+sum.alone {
		b.w.violate("P1: %d of %d are admitted of %s in %s (%+v)", sum.admitted, most+sum.alone, key, p.limit, sum)
	}
}

// cancelled is what a caller gives back. What a bucket took is no longer among its admissions.
func (b *book) cancelled(call uint64, req *backend.Request, receipt *state.Receipt, amount int64) {
	for i, p := range b.pages[req.Key] {
		p.at(p.slotOf(receipt, i)).admitted -= amount
		for j := range p.flow {
			if p.flow[j].call == call {
				p.flow[j].cost -= amount
			}
		}
	}
}

// close checks the buckets: their admissions are put into the order of time, for each was decided before it was heard of.
func (b *book) close() {
	for _, key := range b.w.keys {
		for _, p := range b.pages[key] {
			if p.limit.Algorithm == limit.Bucket {
				b.pour(key, p)
			}
		}
	}
}

func (b *book) pour(key string, p *page) {
	slices.SortStableFunc(p.flow, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	most := p.limit.Burst + int64(b.w.Instances)*20
	if b.w.NoLeases {
		most = p.limit.Burst
	}
	for _, c := range p.slots {
		most += c.alone + c.forgiven
	}
	for _, l := range b.losses {
		if l.key == key {
			most += p.limit.Burst
		}
	}
	rate := float64(p.limit.Max) / float64(p.limit.Window.Microseconds())
	level, last := 0.0, int64(0)
	for _, a := range p.flow {
		level = max(0, level-rate*float64(a.at-last)) + float64(a.cost)
		last = a.at
		if level > float64(most)+1e-3 {
			b.w.violate("P1: %.2f of %d are in the bucket %s of %s", level, most, p.limit, key)
			return
		}
	}
}
