package limit

import (
	"errors"
	"fmt"
	"strconv"
)

// MaxLimits is the largest number of limits in a policy.
const MaxLimits = 16

// MaxPolicySubBuckets is the largest number of sub-buckets in a policy, those of all its sliding limits together. A server
// reads and writes each of them when a caller's floor is newer than its own state, while every other call waits: 240 take a
// fifth of a millisecond, and 16 limits of [MaxSubBuckets] would take several.
const MaxPolicySubBuckets = 240

// Policy is a named list of limits. A request passes only if it passes all of them, whatever their order.
// The name tells a key's counts under one policy from its counts under another; it may be empty.
type Policy struct {
	Name   string // [a-z0-9_-]{1,32}, or empty
	Limits []Limit
}

// Validate reports everything that is wrong with the policy, as [*Error] values joined.
func (p Policy) Validate() error {
	var errs []error
	if p.Name != "" && !validName(p.Name) {
		errs = append(errs, refuse("policy name", quoted(p.Name), "must match [a-z0-9_-]{1,32}"))
	}
	if len(p.Limits) == 0 || len(p.Limits) > MaxLimits {
		errs = append(errs, refuse("limits", len(p.Limits), "a policy has 1 to %d limits", MaxLimits))
	}
	subBuckets := int64(0)
	for i, l := range p.Limits {
		where := fmt.Sprintf("policy %s: limit %d: ", quoted(p.Name), i+1)
		invalid := l.Validate()
		if l.Algorithm == SlidingWindow && invalid == nil {
			subBuckets += int64(l.Window / l.Precision)
		}
		for _, err := range unjoin(invalid) {
			var e *Error
			if errors.As(err, &e) {
				err = &Error{Field: where + e.Field, Value: e.Value, Bound: e.Bound}
			}
			errs = append(errs, err)
		}
		for j, other := range p.Limits[:i] {
			if l.Name != "" && l.Name == other.Name {
				errs = append(errs, refuse(where+"name", quoted(l.Name), "limit %d has this name already", j+1))
			}
			if l.counts() == other.counts() {
				errs = append(errs, refuse(where+"window", l, "limit %d counts the same window already", j+1))
			}
		}
	}
	if subBuckets > MaxPolicySubBuckets {
		errs = append(errs, refuse(fmt.Sprintf("policy %s: sub-buckets", quoted(p.Name)), subBuckets,
			"a policy has at most %d, of all its sliding limits together: take a larger precision", MaxPolicySubBuckets))
	}
	return errors.Join(errs...)
}

// CheckCost refuses a cost below 1, above [MaxCount], or above what a limit of the policy can ever hold; the
// last is an [ErrCostExceedsLimit].
func (p *Policy) CheckCost(cost int64) error {
	if cost < 1 || cost > MaxCount {
		return refuse("cost", cost, "must be from 1 to %d", MaxCount)
	}
	for i := range p.Limits {
		if l := &p.Limits[i]; cost > l.Quota() {
			return &Error{
				Field: "cost", Value: strconv.FormatInt(cost, 10),
				Bound: fmt.Sprintf("must be at most %d under limit %s", l.Quota(), l), Err: ErrCostExceedsLimit,
			}
		}
	}
	return nil
}

// counts returns the limit without the fields that can change without a loss of counts.
func (l Limit) counts() Limit {
	l.Name, l.Max, l.Burst = "", 0, 0
	return l
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return nil
}
