package scripts

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Plan is the part of the arguments of takes that is the same for all takes under the same limits. It is a copy: an
// abandoned call may be encoded when the caller has its policy back.
type Plan struct {
	Limits []limit.Limit
	Script *Script // for several keys in one call; nil if takes under these limits can't share one
	args   []any   // of Script for each limit; nil in the place of what depends on the moment

	one     *Script // for a single take without a floor; nil if there is none for these limits
	oneArgs []any   // its arguments, but for those that depend on the moment; for a cost of 1
}

func newPlan(limits []limit.Limit) *Plan {
	p := &Plan{Limits: slices.Clone(limits)}
	if len(limits) == 1 {
		p.planOne(&p.Limits[0])
	}
	var args []any
	for i := range p.Limits {
		l := &p.Limits[i]
		id := string(state.AppendID(nil, l))
		switch {
		case l.Algorithm == limit.FixedWindow && l.Alignment != limit.KeyStaggered:
			args = append(args, id, l.Max, nil)
		case l.Algorithm == limit.SlidingWindow:
			args = append(args, id, l.Max, nil, l.Precision.Milliseconds(), int64(l.Window/l.Precision))
		default:
			return p
		}
	}
	p.Script, p.args = &Takes, args
	if len(limits) == 1 && limits[0].Algorithm == limit.FixedWindow {
		p.Script = &TakesFixed
	}
	return p
}

// Covers reports whether a plan is for limits.
func (p *Plan) Covers(limits []limit.Limit) bool { return slices.Equal(p.Limits, limits) }

// KeyTake is what a call of Takes is given for one key.
type KeyTake struct {
	Key   string // as it is stored
	Cost  int64
	Floor string // from FloorText
	Phase uint64 // of [state.At]
}

// Args are the arguments of one call. Their memory can serve another one, once this has its reply.
type Args struct {
	List []any

	text text // to which List refers
}

// text is an argument that go-redis writes without a copy.
type text []byte

func (t *text) MarshalBinary() ([]byte, error) { return *t, nil }

// ScriptFor is the script for n keys, of which the first is given: n is 1 if the plan has no Script.
func (p *Plan) ScriptFor(nowMicros int64, n int, first *KeyTake) *Script {
	switch {
	case n == 1 && p.one != nil && p.fitsOne(nowMicros, first):
		return p.one
	case p.Script != nil:
		return p.Script
	}
	return &Take
}

// AppendArgs appends the keys and arguments of a call of script, from ScriptFor, for n keys.
func (p *Plan) AppendArgs(to *Args, script *Script, nowMicros int64, n int, take func(i int) *KeyTake) {
	switch script {
	case &TakeOne, &TakeBucket:
		p.appendOne(to, nowMicros, take(0))
		return
	case &Take:
		t := take(0)
		to.List = append(append(to.List, &t.Key), p.TakeArgs(nowMicros, t)...)
		return
	}
	args := to.List
	costs, floors := false, false
	for i := range n {
		t := take(i)
		args = append(args, &t.Key)
		costs, floors = costs || t.Cost != 1, floors || t.Floor != ""
	}
	args = append(args, nowMicros)
	if p.Script == &Takes {
		args = append(args, len(p.Limits))
	}
	next := 0
	for _, arg := range p.args {
		if arg == nil {
			arg = state.End(&p.Limits[next], state.At{Micros: nowMicros})
			next++
		}
		args = append(args, arg)
	}
	if costs || floors {
		for i := range n {
			args = append(args, take(i).Cost)
		}
	}
	if floors {
		for i := range n {
			args = append(args, &take(i).Floor)
		}
	}
	to.List = args
}

// TakeArgs are the arguments of Take, without the key.
func (p *Plan) TakeArgs(nowMicros int64, take *KeyTake) []any {
	return TakeArgs(p.Limits, state.At{Micros: nowMicros, Phase: take.Phase}, take.Cost, take.Floor, state.Move{})
}

// Size is how many arguments a call for n keys has at most.
func (p *Plan) Size(n int) int { return 3 + max(len(p.args), len(p.oneArgs)) + 3*n }

// Replies are what a call of Takes answers, key by key.
type Replies struct{ rest string }

// ParseTakes decodes the reply of a script from ScriptFor for n keys.
func ParseTakes(script *Script, reply string, n int) (Replies, error) {
	if !script.answersEach() {
		if strings.Contains(reply, " ") || strings.HasPrefix(reply, "-") { // no reply of it, and Next would read more than one
			return Replies{}, state.ErrCorruptState
		}
		return Replies{reply}, nil
	}
	if strings.Count(reply, " ") != n || reply[0] != ' ' {
		return Replies{}, state.ErrCorruptState
	}
	return Replies{reply[1:]}, nil
}

// Next returns the reply for the next key, which ParseTake reads, or the error of its SET; both are empty if the key needs a call
// of Take. Nothing was done at a key with an error.
func (r *Replies) Next() (reply, failed string) {
	reply, r.rest, _ = strings.Cut(r.rest, " ")
	if failed, isError := strings.CutPrefix(reply, "-"); isError {
		return "", strings.ReplaceAll(failed, "\t", " ")
	}
	return reply, ""
}

// Plans remembers the plans of limits that are in use, by a hash of the limits. With more different limits than it has
// room for, plans are made again.
type Plans [256]atomic.Pointer[Plan]

const planProbes = 4 // places where a plan may be

// Find returns the plan of limits.
func (all *Plans) Find(limits []limit.Limit) *Plan {
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
		if known.Covers(limits) {
			return known
		}
	}
	p := newPlan(limits)
	all[free].Store(p)
	return p
}
