package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-go/sluice/limit"
)

// Match is the rule of a descriptor, and what the descriptor is counted under.
type Match struct {
	Rule *Rule // nil: no limit

	// Key is the domain and the entries of the descriptor, escaped so that no two descriptors share one. The value of an entry
	// that shares its threshold is the wildcard's.
	Key string

	// Path names the descriptor in metrics, with the domain before it. With detailed_metric and value_to_metric, and of an
	// override, it holds values of the request: what is longer than 256 bytes beside the domain ends in a hash.
	Path string

	domain, first int // where the domain and the first level end in Path
}

// Split returns the parts of Path: the domain, the first level, and the levels below.
func (m *Match) Split() (domain, first, below string) {
	at := func(i int) int { return min(i, len(m.Path)) }
	return m.Path[:m.domain], m.Path[at(m.domain+1):m.first], m.Path[at(m.first+1):]
}

// Match finds the rule of a descriptor's entries: the most specific at each level, that is the descriptor with the value, else the
// first wildcard that fits, else the one without a value. All entries must match, and the last must have a limit.
func (d *Domain) Match(entries []*ratelimit.RateLimitDescriptor_Entry) Match {
	at := &d.root
	var few [8]*node
	path := few[:0]
	for _, e := range entries {
		if at = at.child(e.GetKey(), e.GetValue()); at == nil {
			return Match{}
		}
		path = append(path, at)
	}
	if at.rule == nil || len(entries) == 0 {
		return Match{}
	}
	m := Match{Rule: at.rule, Key: d.key(entries, path), Path: at.rule.Path, domain: len(d.Name)}
	m.first = len(d.Name) + 1 + len(path[0].name())
	if at.rule.dynamic {
		m.Path, m.first = d.path(entries, path)
	}
	return m
}

func (n *node) child(key, value string) *node {
	if value != "" {
		if c := n.children[childKey{key: key, value: value}]; c != nil {
			return c
		}
	}
	if len(n.wildcards) > 0 {
		name := key + "_" + value
		for _, c := range n.wildcards {
			if (c.value == "" || c.key == key) && strings.HasPrefix(name, c.prefix()) {
				return c
			}
		}
	}
	return n.children[childKey{key: key, any: true}]
}

// escape keeps the parts of keys apart.
var escape = strings.NewReplacer(`\`, `\\`, `|`, `\|`, `=`, `\=`, `~`, `\~`)

// key is what a descriptor is counted under. Path has the nodes of the entries; nil of an override.
func (d *Domain) key(entries []*ratelimit.RateLimitDescriptor_Entry, path []*node) string {
	size := len(d.Name)
	for _, e := range entries {
		size += 2 + len(e.GetKey()) + len(e.GetValue())
	}
	var b strings.Builder
	b.Grow(size)
	_, _ = escape.WriteString(&b, d.Name)
	for i, e := range entries {
		b.WriteByte('|')
		_, _ = escape.WriteString(&b, e.GetKey())
		if path != nil && path[i].shared {
			b.WriteByte('~')
			_, _ = escape.WriteString(&b, path[i].pattern())
			continue
		}
		b.WriteByte('=')
		_, _ = escape.WriteString(&b, e.GetValue())
	}
	return b.String()
}

// pattern is what stands for all values that share a threshold.
func (n *node) pattern() string {
	if n.value == "" {
		return n.key
	}
	return n.value
}

// path is the name in metrics of a descriptor whose values are a part of it.
func (d *Domain) path(entries []*ratelimit.RateLimitDescriptor_Entry, path []*node) (text string, first int) {
	var b strings.Builder
	b.WriteString(d.Name)
	detailed := path[len(path)-1].rule.detailed
	for i, e := range entries {
		n, value := path[i], path[i].value
		switch {
		case n.shared:
			value = n.pattern()
		case detailed, n.toMetric:
			value = e.GetValue()
		}
		b.WriteByte('.')
		b.WriteString(e.GetKey())
		if value != "" {
			b.WriteByte('_')
			b.WriteString(value)
		}
		if i == 0 {
			first = b.Len()
		}
	}
	return d.cut(b.String(), first)
}

// maxPath bounds the part of a Path that holds values of requests.
const maxPath = 256

// cut bounds a Path: what stands for the rest is its hash. First is where the first level ends.
func (d *Domain) cut(path string, first int) (string, int) {
	most := len(d.Name) + 1 + maxPath
	if len(path) <= most {
		return path, first
	}
	sum := sha256.Sum256([]byte(path))
	short := strings.ToValidUTF8(path[:most], "") + "~" + hex.EncodeToString(sum[:8])
	if first > most {
		first = len(short)
	}
	return short, first
}

// overrides keeps the rules of limits that requests bring along, because a policy is recognised by its address.
type overrides struct {
	mu    sync.Mutex // guards rules
	rules map[overrideKey]*Rule
}

type overrideKey struct {
	most uint32
	unit pb.RateLimitResponse_RateLimit_Unit
}

// maxOverrides bounds the rules that are kept; at the bound they are dropped.
const maxOverrides = 1024

// Override is the rule of a limit that a request brought along: it applies in place of the rule that the entries match, and shares
// its counts if the unit is the same. An unknown unit is an error.
func (d *Domain) Override(entries []*ratelimit.RateLimitDescriptor_Entry, o *ratelimit.RateLimitDescriptor_RateLimitOverride) (Match, error) {
	at := overrideKey{o.GetRequestsPerUnit(), pb.RateLimitResponse_RateLimit_Unit(o.GetUnit())}
	window := Window(at.unit)
	if window == 0 {
		return Match{}, fmt.Errorf("the unit %d of a limit override is not known", at.unit)
	}
	m := Match{Rule: d.overrides.rule(at, window, d.policy), Key: d.key(entries, nil), domain: len(d.Name), first: len(d.Name)}
	var b strings.Builder
	b.WriteString(d.Name)
	for i, e := range entries {
		b.WriteByte('.')
		b.WriteString(e.GetKey())
		if e.GetValue() != "" {
			b.WriteByte('_')
			b.WriteString(e.GetValue())
		}
		if i == 0 {
			m.first = b.Len()
		}
	}
	m.Path, m.first = d.cut(b.String(), m.first)
	return m, nil
}

// rule returns the rule of a limit.
func (o *overrides) rule(at overrideKey, window time.Duration, policy string) *Rule {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.rules[at]
	if r == nil {
		r = &Rule{Limit: &pb.RateLimitResponse_RateLimit{RequestsPerUnit: at.most, Unit: at.unit}}
		if at.most > 0 {
			r.Policy = &limit.Policy{Name: policy, Limits: []limit.Limit{limit.Fixed(int64(at.most), window).Aligned()}}
		}
		if o.rules == nil || len(o.rules) >= maxOverrides {
			o.rules = make(map[overrideKey]*Rule)
		}
		o.rules[at] = r
	}
	return r
}
