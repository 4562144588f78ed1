package rules

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
)

// Set is a configuration: the domains of all files.
type Set struct {
	domains map[string]*Domain
}

// Domain is a list of descriptors under a name.
type Domain struct {
	Name  string
	Lease *Lease // how processes hold batches of its limits; nil: every request is decided by the server

	policy    string // the name of its policies
	root      node
	overrides overrides
}

// Lease is a lease.Config as far as a file sets it: zero is that package's default.
type Lease struct {
	Processes int
	Batch     int64
	Life      time.Duration
	Recheck   time.Duration
	Slack     float64
	Flush     time.Duration
	Least     int64
}

// Config returns what the file sets as a lease.Config.
func (l Lease) Config() lease.Config {
	return lease.Config{
		Processes: l.Processes, Batch: l.Batch, Life: l.Life, Recheck: l.Recheck, Slack: l.Slack, Flush: l.Flush, Least: l.Least,
	}
}

// Rule is the limit of a descriptor.
type Rule struct {
	// Path names the rule in metrics: the domain, and the key and value of each level, as the reference has it.
	Path string

	// Limit is the limit as responses show it. It must not be changed.
	Limit *pb.RateLimitResponse_RateLimit

	// Policy is what is counted; nil of an unlimited rule, and of one that admits nothing.
	Policy *limit.Policy

	Replaces  []string // names of rules that this one replaces in a request that matches both
	Unlimited bool
	Shadow    bool // counted, and never enforced
	Quota     bool // as Shadow; a request above it is shown in the metadata of the response
	Overrun   bool // a request above what is left counts in full

	detailed bool
	dynamic  bool // its name in metrics has values of the request
}

// Dynamic reports whether the rule's names in metrics hold values of requests, which have no end, as those of overrides do.
func (r *Rule) Dynamic() bool { return r.dynamic || r.Path == "" }

// Domain returns a domain, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Domains yields all domains by name.
func (s *Set) Domains() iter.Seq[*Domain] {
	return func(yield func(*Domain) bool) {
		for _, name := range slices.Sorted(maps.Keys(s.domains)) {
			if !yield(s.domains[name]) {
				return
			}
		}
	}
}

// All yields the rules of all domains, in no order.
func (s *Set) All() iter.Seq[*Rule] {
	return func(yield func(*Rule) bool) {
		for d := range s.Domains() {
			if !d.root.each(yield) {
				return
			}
		}
	}
}

// String describes the configuration for operators, a rule a line.
func (s *Set) String() string {
	var lines []string
	for r := range s.All() {
		line := r.Path + ":"
		switch {
		case r.Unlimited:
			line += " unlimited"
		case r.Policy == nil:
			line += " none"
		default:
			line += fmt.Sprintf(" %s, %d per %s", r.Policy.Limits[0], r.Limit.RequestsPerUnit, strings.ToLower(r.Limit.Unit.String()))
		}
		for _, flag := range []struct {
			is   bool
			name string
		}{{r.Shadow, "shadow_mode"}, {r.Quota, "quota_mode"}, {r.Overrun, "overrun"}} {
			if flag.is {
				line += ", " + flag.name
			}
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// node is a descriptor of a file, and the root of a domain.
type node struct {
	key, value string
	line       int
	file       string
	children   map[childKey]*node
	wildcards  []*node // children that end in *, in the order of the files
	rule       *Rule   // nil: none
	toMetric   bool    // value_to_metric
	shared     bool    // share_threshold
}

// childKey finds a descriptor among its siblings. A descriptor without a value is another one than one with an empty value of a
// request.
type childKey struct {
	key, value string
	any        bool // without a value
}

func (n *node) each(yield func(*Rule) bool) bool {
	if n.rule != nil && !yield(n.rule) {
		return false
	}
	for _, c := range n.children {
		if !c.each(yield) {
			return false
		}
	}
	return true
}

// prefix is what a wildcard's entries begin with: key, _ and value.
func (n *node) prefix() string { return strings.TrimSuffix(n.name(), "*") }

// name is the descriptor in the reference's notation.
func (n *node) name() string {
	if n.value == "" {
		return n.key
	}
	return n.key + "_" + n.value
}
