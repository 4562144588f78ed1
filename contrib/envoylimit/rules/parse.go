package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v4"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
)

// File is a configuration file. Its name stands in errors.
type File struct {
	Name string
	Text []byte
}

// Config says how files are read. The zero value is the reference's default.
type Config struct {
	// MergeDomains lets several files have descriptors of one domain. False: a domain in a second file is an error.
	MergeDomains bool
}

// Parse reads files, in their order. It returns every problem, as joined *Error values.
func Parse(files []File, cfg Config) (*Set, error) {
	p := parser{set: &Set{domains: make(map[string]*Domain)}, found: &problems{}, cfg: cfg}
	for _, f := range files {
		p.reader = reader{file: f.Name, found: p.found}
		if n := p.document(f.Text); n != nil {
			p.domain(n)
		}
	}
	if err := p.found.err(); err != nil {
		return nil, err
	}
	return p.set, nil
}

type parser struct {
	reader
	set   *Set
	found *problems
	cfg   Config
}

func (p *parser) domain(n *yaml.Node) {
	m := p.members(n, "the file", "domain", "descriptors", "sluice")
	name := p.text(m["domain"], "domain")
	if name == "" {
		p.problem(n, "the domain must not be empty")
		return
	}
	d, merged := p.set.domains[name], true
	switch {
	case d == nil:
		merged = false
		d = &Domain{Name: name, policy: policyName(name)}
		p.set.domains[name] = d
	case !p.cfg.MergeDomains:
		p.problem(n, "another file has the same domain")
		return
	}
	if s := m["sluice"]; s != nil {
		if d.Lease != nil && merged {
			p.problem(s, "another file has sluice settings of the same domain")
		}
		p.lease(d, s)
	}
	p.descriptors(d, &d.root, m["descriptors"], name, false, 1)
}

func (p *parser) lease(d *Domain, n *yaml.Node) {
	s := p.members(n, "sluice", "lease")["lease"]
	if s == nil {
		return
	}
	m := p.members(s, "lease", "processes", "batch", "life", "recheck", "slack", "flush", "least")
	d.Lease = &Lease{
		Processes: int(p.number(m["processes"], "processes")),
		Batch:     int64(p.number(m["batch"], "batch")),
		Life:      p.duration(m["life"], "life"),
		Recheck:   p.duration(m["recheck"], "recheck"),
		Slack:     p.fraction(m["slack"], "slack"),
		Flush:     p.duration(m["flush"], "flush"),
		Least:     int64(p.number(m["least"], "least")),
	}
	if d.Lease.Slack > 0 && d.Lease.Processes == 0 {
		p.problem(m["slack"], "slack needs processes: how many share the limits")
		return
	}
	for _, bad := range fielderrors.All(checkLease(d.Lease.Config())) {
		at, name := s, strings.ToLower(strings.TrimPrefix(bad.Field, "lease: "))
		if m[name] != nil {
			at = m[name]
		}
		p.problem(at, "%s = %s: %s", name, bad.Value, bad.Bound)
	}
}

// checkLease returns what is wrong with a lease: what package lease says of one over a backend that can do everything.
func checkLease(cfg lease.Config) error {
	inner, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	leases, err := lease.New(inner, cfg)
	if err != nil {
		return errors.Join(err, inner.Close())
	}
	return leases.Close()
}

// descriptors reads the children of a node. Path is the node's in metrics; dynamic is whether values of requests stand in it. Depth
// is the level of the children, from 1.
func (p *parser) descriptors(d *Domain, parent *node, n *yaml.Node, path string, dynamic bool, depth int) {
	if n != nil && depth > maxDepth {
		p.problem(n, "descriptors must be at most %d levels deep", maxDepth)
		return
	}
	for _, element := range p.list(n, "descriptors") {
		m := p.members(element, "the descriptor", "key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode",
			"detailed_metric", "value_to_metric", "share_threshold", "sluice")
		c := &node{key: p.text(m["key"], "key"), value: p.text(m["value"], "value"), line: element.Line, file: p.file}
		if c.key == "" {
			p.problem(element, "the key of a descriptor must not be empty")
			continue
		}
		c.toMetric, c.shared = p.flag(m["value_to_metric"], "value_to_metric"), p.flag(m["share_threshold"], "share_threshold")
		wildcard := strings.HasSuffix(c.name(), "*")
		if c.shared && !wildcard {
			p.problem(m["share_threshold"], "share_threshold needs a value that ends with *")
		}
		dynamic := dynamic || c.toMetric && !c.shared && (c.value == "" || wildcard)
		itsPath := path + "." + c.name()
		c.rule = p.rule(d, m, itsPath, dynamic)
		p.descriptors(d, c, m["descriptors"], itsPath, dynamic, depth+1)
		at := childKey{key: c.key, value: c.value, any: c.value == ""}
		if other := parent.children[at]; other != nil {
			p.problem(element, "the key and value are those of another descriptor, %s:%d", other.file, other.line)
			continue
		}
		if parent.children == nil {
			parent.children = make(map[childKey]*node)
		}
		parent.children[at] = c
		if wildcard {
			parent.wildcards = append(parent.wildcards, c)
		}
	}
}

// rule reads what a descriptor says of its limit; nil if it has none.
func (p *parser) rule(d *Domain, m map[string]*yaml.Node, path string, dynamic bool) *Rule {
	r := &Rule{
		Path: path, Shadow: p.flag(m["shadow_mode"], "shadow_mode"), Quota: p.flag(m["quota_mode"], "quota_mode"),
		detailed: p.flag(m["detailed_metric"], "detailed_metric"),
	}
	r.dynamic = dynamic || r.detailed
	n := m["rate_limit"]
	if n == nil {
		if m["sluice"] != nil {
			p.problem(m["sluice"], "sluice stands beside a rate_limit")
		}
		return nil
	}
	l := p.members(n, "rate_limit", "unit", "requests_per_unit", "unlimited", "name", "replaces")
	r.Limit = &pb.RateLimitResponse_RateLimit{
		Name: p.text(l["name"], "name"), RequestsPerUnit: p.number(l["requests_per_unit"], "requests_per_unit"),
	}
	for _, element := range p.list(l["replaces"], "replaces") {
		switch name := p.text(p.members(element, "an entry of replaces", "name")["name"], "name"); name {
		case "":
			p.problem(element, "an entry of replaces must have a name")
		case r.Limit.Name:
			p.problem(element, "a rule can't replace itself")
		default:
			r.Replaces = append(r.Replaces, name)
		}
	}
	if r.Unlimited = p.flag(l["unlimited"], "unlimited"); r.Unlimited {
		if l["unit"] != nil {
			p.problem(l["unit"], "an unlimited rule has no unit")
		}
		if m["sluice"] != nil {
			p.problem(m["sluice"], "an unlimited rule counts nothing")
		}
		return r
	}
	unit, known := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(p.text(l["unit"], "unit"))]
	if !known || unit == int32(pb.RateLimitResponse_RateLimit_UNKNOWN) {
		at := l["unit"]
		if at == nil {
			at = n
		}
		p.problem(at, "the unit must be second, minute, hour, day, week, month or year")
		return nil
	}
	r.Limit.Unit = pb.RateLimitResponse_RateLimit_Unit(unit)
	p.count(d, r, n, m["sluice"])
	return r
}

// count sets the policy of a rule: windows as the reference has them, or what the extension says.
func (p *parser) count(d *Domain, r *Rule, at, extension *yaml.Node) {
	most, window := int64(r.Limit.RequestsPerUnit), Window(r.Limit.Unit)
	counted := limit.Fixed(most, window).Aligned()
	if extension != nil {
		m := p.members(extension, "sluice", "sliding", "bucket", "overrun")
		r.Overrun = p.flag(m["overrun"], "overrun")
		sliding, bucket := m["sliding"], m["bucket"]
		switch {
		case sliding != nil && bucket != nil:
			p.problem(extension, "a limit is sliding or a bucket, not both")
		case sliding != nil:
			at = sliding
			counted = limit.Sliding(most, window, p.duration(p.members(sliding, "sliding", "precision")["precision"], "precision"))
		case bucket != nil:
			at = bucket
			counted = limit.TokenBucket(most, window, int64(p.number(p.members(bucket, "bucket", "burst")["burst"], "burst")))
		}
	}
	if most == 0 { // admits nothing
		return
	}
	if named := counted.Named(r.Limit.Name); named.Validate() == nil {
		counted = named
	}
	for _, bad := range fielderrors.All(counted.Validate()) {
		p.problem(at, "%s = %s: %s", bad.Field, bad.Value, bad.Bound)
	}
	r.Policy = &limit.Policy{Name: d.policy, Limits: []limit.Limit{counted}}
}

// Window is the length of a unit. A month has 30 days and a year 365, as in the reference; 0 of an unknown unit.
func Window(unit pb.RateLimitResponse_RateLimit_Unit) time.Duration {
	const day = 24 * time.Hour
	switch unit {
	case pb.RateLimitResponse_RateLimit_SECOND:
		return time.Second
	case pb.RateLimitResponse_RateLimit_MINUTE:
		return time.Minute
	case pb.RateLimitResponse_RateLimit_HOUR:
		return time.Hour
	case pb.RateLimitResponse_RateLimit_DAY:
		return day
	case pb.RateLimitResponse_RateLimit_WEEK:
		return 7 * day
	case pb.RateLimitResponse_RateLimit_MONTH:
		return 30 * day
	case pb.RateLimitResponse_RateLimit_YEAR:
		return 365 * day
	}
	return 0
}

// policyName is a domain as the name of policies, which is a part of stored names: [a-z0-9_-]{1,32}. All rules of a domain have
// one, so that counts belong to a descriptor, whichever rule it matches after a change of the files.
func policyName(domain string) string {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, domain)
	if slug == domain && len(slug) <= 32 {
		return slug
	}
	sum := sha256.Sum256([]byte(domain))
	return slug[:min(len(slug), 23)] + "-" + hex.EncodeToString(sum[:4])
}
