package backend

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// plan is limits as scripts.Takes and scripts.TakesFixed want them. It is made once and shared by the takes
// under policies with these limits. It is a copy: a call that was given up may be encoded when the caller has the policy back.
type plan struct {
	limits []limit.Limit
	script *scripts.Script // nil if takes under them can't go together
	args   []any           // what each limit sends; nil in the place of what depends on the moment
}

func newPlan(limits []limit.Limit) *plan {
	p := &plan{limits: slices.Clone(limits)}
	for i := range p.limits {
		l := &p.limits[i]
		id := string(limit.AppendID(nil, l))
		switch {
		case l.Algorithm == limit.FixedWindow && l.Alignment != limit.KeyStaggered:
			p.args = append(p.args, id, l.Max, nil)
		case l.Algorithm == limit.SlidingWindow:
			p.args = append(p.args, id, l.Max, nil, l.Precision.Milliseconds(), int64(l.Window/l.Precision))
		default:
			return p
		}
	}
	p.script = &scripts.Takes
	if len(limits) == 1 && limits[0].Algorithm == limit.FixedWindow {
		p.script = &scripts.TakesFixed
	}
	return p
}

// aloneAfterRefusal is how many takes under a policy go alone after one of them was refused that shared a call, and then by
// itself. Each refusal starts the count again, so that a policy which Redis refuses takes no other one along, not even once in a while.
const aloneAfterRefusal = 256

// isolation is how many more takes under a policy go alone.
type isolation struct{ left atomic.Int32 }

func (s *isolation) refused() { s.left.Store(aloneAfterRefusal) }

// apart reports whether a take under the policy has to go alone.
func (s *isolation) apart() bool { return s.left.Load() > 0 && s.left.Add(-1) >= 0 }

// solos has one isolation for a policy, by a hash of its name. Policies that share one are only slower.
type isolations [1024]isolation

func (all *isolations) of(name string) *isolation {
	hash := uint64(len(name))
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 0x100000001b3
	}
	return &all[hash*0x9e3779b97f4a7c15>>54]
}

// appendArgs appends the arguments of one call for several calls.
func (p *plan) appendArgs(args []any, nowMicros int64, calls []*evalCall) []any {
	costs, floors := false, false
	for _, e := range calls {
		args = append(args, &e.key)
		costs, floors = costs || e.cost != 1, floors || e.floor != ""
	}
	args = append(args, nowMicros)
	if p.script == &scripts.Takes {
		args = append(args, len(p.limits))
	}
	next := 0
	for _, arg := range p.args {
		if arg == nil {
			arg = limit.End(&p.limits[next], limit.At{Micros: nowMicros})
			next++
		}
		args = append(args, arg)
	}
	if costs || floors {
		for _, e := range calls {
			args = append(args, e.cost)
		}
	}
	if floors {
		for _, e := range calls {
			args = append(args, &e.floor)
		}
	}
	return args
}

// plans remembers the plans of limits that are in use, by a hash of what they are: nothing of the caller's is held. With
// more different limits than there is room for, plans are made again, and a take is only slower.
type plans [256]atomic.Pointer[plan]

const planProbes = 4 // places where a plan may be

// find returns the plan of limits.
func (all *plans) find(limits []limit.Limit) *plan {
	hash := uint64(len(limits))
	for i := range limits {
		l := &limits[i]
		hash += uint64(l.Max) + uint64(l.Window)*31 + uint64(l.Precision)*17 + uint64(l.Algorithm) + uint64(l.Alignment)<<8
		hash *= 0x9e3779b97f4a7c15
	}
	home := int(hash >> 56)
	free := home
	for i := range planProbes {
		at := (home + i) % len(all)
		known := all[at].Load()
		if known == nil {
			free = at
			break
		}
		if known.of(limits) {
			return known
		}
	}
	p := newPlan(limits)
	all[free].Store(p)
	return p
}

func (p *plan) of(limits []limit.Limit) bool { return slices.Equal(p.limits, limits) }
