package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// creditBook is what was admitted of a key, and what the server was charged.
type creditBook struct {
	w     *credit
	pages []creditPage // of each limit
}

// creditPage is of one limit. A slot is a window or sub-bucket, by its end.
type creditPage struct {
	limit limit.Limit
	slots map[int64]*creditSlot
	flow  []poured // of a bucket
}

type creditSlot struct {
	admitted, given, charged int64
	refunded                 int64 // of what was charged, by the server
	lives                    map[int64]bool
}

// poured is an admission of a bucket.
type poured struct{ at, cost, life int64 }

func newCreditBook(w *credit) *creditBook {
	b := &creditBook{w: w}
	for _, l := range w.Limits {
		b.pages = append(b.pages, creditPage{limit: l, slots: make(map[int64]*creditSlot)})
	}
	return b
}

func (p *creditPage) at(end int64) *creditSlot {
	s := p.slots[end]
	if s == nil {
		s = &creditSlot{lives: make(map[int64]bool)}
		p.slots[end] = s
	}
	return s
}

// admit records an admission. What was spent without a call was spent now; what the server admitted, at its moment.
func (b *creditBook) admit(life int64, r *backend.Result, cost int64) {
	receipt, now := r.Receipt(), time.Now().UnixMicro()
	if r.Source == backend.Primary {
		now = r.Now
	}
	for i := range b.pages {
		p := &b.pages[i]
		if p.limit.Algorithm == limit.Bucket {
			p.flow = append(p.flow, poured{now, cost, life})
			continue
		}
		end, _, _ := receipt.Charge(i)
		s := p.at(end)
		s.admitted += cost
		s.lives[life] = true
		if over := spendable(&p.limit, end); now >= over {
			b.violate("admitted %d us after the end of its window of %s", now-over, p.limit)
		}
		if begins := end - p.limit.Window.Microseconds(); now < begins {
			b.violate("admitted %d us before its window of %s", begins-now, p.limit)
		}
	}
}

// spendable is when the window or sub-bucket that counts until end is over for admissions.
func spendable(l *limit.Limit, end int64) int64 {
	if l.Algorithm == limit.SlidingWindow {
		return end - (l.Window - l.Precision).Microseconds()
	}
	return end
}

func (b *creditBook) giveBack(r *backend.Result, cost int64) {
	receipt := r.Receipt()
	for i := range b.pages {
		if p := &b.pages[i]; p.limit.Algorithm != limit.Bucket {
			end, _, _ := receipt.Charge(i)
			p.at(end).given += cost
		}
	}
}

// charged records what a server was charged.
func (b *creditBook) charged(v *state.Verdict, cost int64) {
	receipt := v.Receipt()
	for i := range b.pages {
		p := &b.pages[i]
		end, position, _ := receipt.Charge(i)
		if p.limit.Algorithm != limit.Bucket && position > 0 { // otherwise the window was over
			p.at(end).charged += cost
		}
	}
}

func (b *creditBook) violate(format string, args ...any) {
	b.w.report.Violations = append(b.w.report.Violations, fmt.Sprintf(format, args...))
}

// close checks all windows.
func (b *creditBook) close() {
	cfg := &b.w.Lease
	bound := lease.BoundError{Slack: cfg.Slack, Processes: cfg.Processes, Least: cfg.Least}
	if b.w.Stated != nil {
		bound = *b.w.Stated
	}
	for i := range b.pages {
		p := &b.pages[i]
		each := bound.Above(p.limit) / int64(bound.Processes) // of a process
		if p.limit.Algorithm == limit.Bucket {
			b.pour(p, each)
			continue
		}
		for end, s := range p.slots {
			if cfg.Batch < 0 && s.charged > s.admitted {
				b.violate("%d were charged to a window of %s in which %d were admitted", s.charged, p.limit, s.admitted)
			}
			held, lives := b.window(p, end)
			above, most := held-p.limit.Max, int64(lives)*each
			if above > b.w.report.Above {
				b.w.report.Above, b.w.report.Of = above, most
			}
			if above > most {
				b.violate("P14: %d above %s in a window of %d lives, with at most %d each", above, p.limit, lives, each)
			}
		}
	}
}

// window adds up the window that a slot is the newest of.
func (b *creditBook) window(p *creditPage, end int64) (held int64, lives int) {
	width, n := int64(1), int64(1)
	if p.limit.Algorithm == limit.SlidingWindow {
		width = p.limit.Precision.Microseconds()
		n = int64(p.limit.Window / p.limit.Precision)
	}
	all := make(map[int64]bool)
	for j := range n {
		if s := p.slots[end-j*width]; s != nil {
			held += s.admitted - s.given
			for life := range s.lives {
				all[life] = true
			}
		}
	}
	return held, len(all)
}

// pour checks every interval of a bucket: Burst + rate x T, and an allowance for each life, again for each time in T in which a
// burst refills if charges were lost.
func (b *creditBook) pour(p *creditPage, each int64) {
	rate := float64(p.limit.Max) / float64(p.limit.Window.Microseconds())
	refill := float64(p.limit.Burst) / rate
	slices.SortStableFunc(p.flow, func(a, b poured) int { return cmp.Compare(a.at, b.at) })
	for i := range p.flow {
		sum, lives := int64(0), make(map[int64]bool)
		for _, a := range p.flow[i:] {
			sum += a.cost
			lives[a.life] = true
			took := float64(a.at - p.flow[i].at)
			allowances := int64(len(lives)) * each
			if b.w.report.Lost > 0 {
				allowances *= 1 + int64(took/refill)
			}
			above := float64(sum) - float64(p.limit.Burst) - rate*took
			if int64(above) > b.w.report.Above {
				b.w.report.Above, b.w.report.Of = int64(above), allowances
			}
			if above > float64(allowances)+1e-3 {
				b.violate("P14: %.2f above the bucket %s in %.0f us, by %d lives with at most %d each", above, p.limit, took, len(lives), each)
				return
			}
		}
	}
}
