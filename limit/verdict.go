package limit

import (
	"iter"
	"time"
)

// Verdict is the outcome of a take or a peek, with the status of every limit. It is a value: up to
// inlineLimits limits it holds without allocating, because every decision makes one.
type Verdict struct {
	Allowed bool

	binding int
	cost    int64 // what was charged
	spare   int64 // charged in advance, and not spent
	policy  *Policy
	inline  [inlineLimits]facts
	more    []facts // the limits from inlineLimits on
}

const inlineLimits = 4

const never = int64(Never) // as microseconds, too

type facts struct {
	remaining  int64
	reset      int64 // Unix microseconds
	retryAfter int64 // microseconds
	mark       mark
}

// mark names a charge: where it came to lie, and from when on it no longer counts.
type mark struct {
	end      int64 // of the window or sub-bucket, or when the bucket would have been full again; Unix microseconds
	position span  // what was charged there so far, or the bucket's arrival time
}

// Status is what one limit says.
type Status struct {
	Limit      Limit
	Remaining  int64         // what is left after the request; never negative
	ResetAt    time.Time     // when the full quota is back
	RetryAfter time.Duration // how long this limit alone makes the request wait; 0 if it admits it
}

func newVerdict(p *Policy) Verdict {
	v := Verdict{policy: p}
	if n := len(p.Limits) - inlineLimits; n > 0 {
		v.more = make([]facts, n)
	}
	return v
}

func (v *Verdict) facts(i int) *facts {
	if i < inlineLimits {
		return &v.inline[i]
	}
	return &v.more[i-inlineLimits]
}

// bind picks the binding limit: of a denial the one that lets the request pass last; of an admission the one with
// the least left, and of equals the one that resets last.
func (v *Verdict) bind() {
	v.binding = 0
	for i := 1; i < len(v.policy.Limits); i++ {
		f, b := v.facts(i), v.facts(v.binding)
		var closer bool
		switch {
		case !v.Allowed && f.retryAfter != b.retryAfter:
			closer = f.retryAfter > b.retryAfter
		case f.remaining != b.remaining:
			closer = f.remaining < b.remaining
		default:
			closer = f.reset > b.reset
		}
		if closer {
			v.binding = i
		}
	}
}

// Binding is the status of the limit that decides what the caller can do next: of a denial the one that lets the
// request pass last, of an admission the one that is nearest its end. It is the zero Status for a zero Verdict.
func (v *Verdict) Binding() Status {
	if v.policy == nil || len(v.policy.Limits) == 0 {
		return Status{}
	}
	return v.status(v.binding)
}

// All yields the status of every limit, in the policy's order.
func (v *Verdict) All() iter.Seq[Status] {
	return func(yield func(Status) bool) {
		if v.policy == nil {
			return
		}
		for i := range v.policy.Limits {
			if !yield(v.status(i)) {
				return
			}
		}
	}
}

func (v *Verdict) status(i int) Status {
	f := v.facts(i)
	s := Status{
		Limit:      v.policy.Limits[i],
		Remaining:  f.remaining + v.spare,
		ResetAt:    time.UnixMicro(f.reset),
		RetryAfter: time.Duration(f.retryAfter) * time.Microsecond,
	}
	if f.retryAfter == never {
		s.RetryAfter = Never
	}
	return s
}

// Receipt names the charge of an admitted take, window by window, for its refund.
type Receipt struct {
	Cost int64 // what was charged; 0 if nothing was

	policy *Policy
	inline [inlineLimits]mark
	more   []mark
}

// Receipt returns the receipt of an admitted take; its Cost is 0 for anything else.
func (v *Verdict) Receipt() Receipt {
	r := Receipt{Cost: v.cost, policy: v.policy}
	if r.Cost == 0 {
		return r
	}
	for i := range v.policy.Limits {
		if i < inlineLimits {
			r.inline[i] = v.inline[i].mark
		} else {
			r.more = append(r.more, v.more[i-inlineLimits].mark)
		}
	}
	return r
}

// Policy is the policy that was charged.
func (r *Receipt) Policy() *Policy { return r.policy }

func (r *Receipt) mark(i int) mark {
	if i < inlineLimits {
		return r.inline[i]
	}
	return r.more[i-inlineLimits]
}

// Mark names the charge of limit i of the policy. From end on it is over, and there is nothing to give back. Of a
// window or sub-bucket, end is its own and position is what was charged there so far; of a bucket, end is when it
// would have been full again and position is the arrival time. End and arrival time are Unix microseconds, fraction
// is in 1/Max microseconds.
func (r *Receipt) Mark(i int) (end, position, fraction int64) {
	m := r.mark(i)
	return m.end, m.position.micros, m.position.frac
}
