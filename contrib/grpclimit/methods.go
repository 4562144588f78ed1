package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Method is what is different for a method or a service.
type Method struct {
	// Exempt leaves the calls alone: they need no key, cost nothing and get no limits.
	Exempt bool

	// Throttler is who decides. It stays open. Nil: the Interceptor's.
	Throttler *throttler.Throttler

	// Cost is what a call costs. Zero: what Config.Cost says.
	Cost int64
}

func (m Method) validate(pattern string) error {
	var bad fielderrors.List
	field := "Methods[" + strconv.Quote(pattern) + "]"
	if m.Cost < 0 || m.Cost > limit.MaxCount {
		bad.Add(field+".Cost", m.Cost, "must be from 0 to "+strconv.FormatInt(limit.MaxCount, 10))
	}
	if m.Exempt && (m.Throttler != nil || m.Cost != 0) {
		bad.Add(field, "exempt", "must have neither a throttler nor a cost")
	}
	return bad.Err()
}

// method returns what applies to a method, with its Throttler.
func (i *Interceptor) method(name string) Method {
	m, ok := i.methods.find(name)
	if !ok {
		return i.all
	}
	if m.Throttler == nil {
		m.Throttler = i.all.Throttler
	}
	return m
}

// PolicyFor makes a throttler.Config's PolicyFor that gives methods policies of their own, by the patterns of
// [Config.Methods], on one backend. A method without one, and a key that is looked at outside of a call, has the
// Throttler's Policy. A method shares the counts of every other whose policy has the same name, so policies that differ
// must have different names, and should not have that of the Throttler's Policy either.
func PolicyFor(policies map[string]limit.Policy) (func(context.Context, string) *limit.Policy, error) {
	var errs []error
	shared, names := make(map[string]*limit.Policy, len(policies)), make(map[string]*limit.Policy)
	for _, pattern := range slices.Sorted(maps.Keys(policies)) {
		p := policies[pattern]
		field := "method " + strconv.Quote(pattern)
		if joined, bad := p.Validate().(interface{ Unwrap() []error }); bad {
			for _, err := range joined.Unwrap() {
				errs = append(errs, fmt.Errorf("%s: %w", field, err))
			}
		}
		if other := names[p.Name]; other != nil && !slices.Equal(other.Limits, p.Limits) {
			errs = append(errs, &limit.Error{
				Field: field + ": policy name", Value: strconv.Quote(p.Name), Bound: "must not be that of a different policy",
			})
		}
		p.Limits = slices.Clone(p.Limits)
		names[p.Name], shared[pattern] = &p, &p
	}
	methods, err := newByMethod(shared)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("grpclimit: %w", err)
	}
	return func(ctx context.Context, _ string) *limit.Policy {
		name, _ := grpc.Method(ctx)
		p, _ := methods.find(name)
		return p
	}, nil
}

// byMethod finds what belongs to a method, without an allocation and without remembering names that clients make up.
type byMethod[T any] struct {
	methods  map[string]T // by "/pkg.Service/Method"
	services map[string]T // by "/pkg.Service/"
}

func newByMethod[T any](patterns map[string]T) (byMethod[T], error) {
	var errs []error
	b := byMethod[T]{methods: make(map[string]T), services: make(map[string]T)}
	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		value := patterns[pattern]
		service, method := split(pattern)
		switch {
		case len(service) < len("/x/") || service[0] != '/' || method == "" ||
			strings.Contains(service, "*") || method != "*" && strings.Contains(method, "*"):
			errs = append(errs, &limit.Error{
				Field: "method", Value: strconv.Quote(pattern), Bound: `must be like "/pkg.Service/Method" or "/pkg.Service/*"`,
			})
		case method == "*":
			b.services[service] = value
		default:
			b.methods[pattern] = value
		}
	}
	return b, errors.Join(errs...)
}

func (b *byMethod[T]) find(name string) (T, bool) {
	value, ok := b.methods[name]
	if !ok {
		service, _ := split(name)
		value, ok = b.services[service]
	}
	return value, ok
}

// split splits a full name behind its last slash, as grpc does.
func split(name string) (service, method string) {
	i := strings.LastIndexByte(name, '/') + 1
	return name[:i], name[i:]
}
