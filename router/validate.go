package router

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/limit"
)

const (
	maxWeight      = 1024 // of one group, as in package ring
	maxTotalWeight = 2048 // what package ring has points for
	maxPrevious    = 16   // topologies before one, in its chain
)

var (
	validName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	validHost = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}$`)
)

// Validate reports all problems of the topology, as [*ConfigError] values joined.
func (t Topology) Validate() error {
	errs := []error{t.validate("")}
	refuse := func(field, value, format string, args ...any) {
		errs = append(errs, &ConfigError{Field: field, Value: value, Bound: fmt.Sprintf(format, args...)})
	}
	if t.Epoch > uint64(limit.MaxCount) {
		refuse("epoch", strconv.FormatUint(t.Epoch, 10), "must be from 0 to %d", limit.MaxCount)
	}
	where := "previous."
	for older, p := 0, t.Previous; p != nil; older, p = older+1, p.Previous {
		if older == maxPrevious {
			refuse(where[:len(where)-1], "set", "must not be there: at most %d topologies are looked back at", maxPrevious)
			break
		}
		if t.Baseline {
			refuse(strings.TrimSuffix(where, "previous.")+"baseline", "true", "must not be there with a previous one: that says that windows may be alive")
		}
		errs = append(errs, p.validate(where))
		if p.Epoch >= t.Epoch {
			refuse(where+"epoch", strconv.FormatUint(p.Epoch, 10), "must be below %d", t.Epoch)
		}
		t, where = *p, where+"previous."
	}
	return errors.Join(errs...)
}

// validate checks the groups. Where is before the name of every field.
func (t Topology) validate(where string) error {
	v := validator{where: where}
	if len(t.Groups) == 0 {
		v.refuse("groups", "none", "must have at least one")
	}
	for i := range t.Groups {
		g, where := &t.Groups[i], fmt.Sprintf("groups[%d]", i)
		v.group(where, g.Name, g.Weight)
		v.servers(where, g)
	}
	for _, check := range v.later {
		check()
	}
	return v.err()
}

// validator collects problems. Its zero value is ready to use.
type validator struct {
	where    string // before every field
	problems []error
	names    map[string]string // group name to the field that has it
	byNode   map[string]string // address of a node to the field that has it
	masters  map[string]string // a master by one of its sentinels, to the group that has it
	weight   int
	later    []func() // checks that need all nodes
}

func (v *validator) refuse(field, value, format string, args ...any) {
	v.problems = append(v.problems, &ConfigError{Field: v.where + field, Value: value, Bound: fmt.Sprintf(format, args...)})
}

func (v *validator) err() error {
	if v.weight > maxTotalWeight {
		v.refuse("groups: total weight", strconv.Itoa(v.weight), "must be at most %d", maxTotalWeight)
	}
	return errors.Join(v.problems...)
}

// group checks the name and weight of a group.
func (v *validator) group(where, name string, weight int) {
	if !validName.MatchString(name) {
		v.refuse(where+".name", strconv.Quote(name), "must match [A-Za-z0-9_.-]{1,64}")
	} else {
		v.unique(&v.names, where+".name", strconv.Quote(name), name)
	}
	if weight < 0 || weight > maxWeight {
		v.refuse(where+".weight", strconv.Itoa(weight), "must be from 1 to %d, or 0 for 1", maxWeight)
		return
	}
	v.weight += max(weight, 1)
}

// servers checks that a group is of exactly one kind, and complete, and checks its addresses.
func (v *validator) servers(where string, g *Group) {
	kinds := g.kinds()
	switch {
	case len(kinds) == 0:
		v.refuse(where, "empty", "must have one of %s", kindNames(false))
	case len(kinds) > 1:
		names := make([]string, len(kinds))
		for i, k := range kinds {
			names[i] = k.name
		}
		v.refuse(where, strings.Join(names, " and "), "must have only one of %s", kindNames(true))
	case kinds[0].complete != nil:
		kinds[0].complete(v, where, g)
	}
	for _, k := range kinds {
		k.check(v, where, g)
	}
}

// kindNames lists the fields by which groups are of a kind, if wanted with those that go with them.
func kindNames(also bool) string {
	names := make([]string, len(groupKinds))
	for i, k := range groupKinds {
		if names[i] = k.name; also && k.also != "" {
			names[i] += " (and " + k.also + ")"
		}
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func (v *validator) nodes(field string, addresses []string) {
	for i, address := range addresses {
		v.node(fmt.Sprintf("%s[%d]", field, i), address)
	}
}

func (v *validator) node(field, address string) {
	if canonical, ok := v.address(field, address); ok {
		v.unique(&v.byNode, field, strconv.Quote(address), canonical)
	}
}

func (v *validator) sentinels(where string, g *Group) {
	own := make(map[string]string) // within the group
	for i, address := range g.Sentinels {
		field := fmt.Sprintf("%s.sentinels[%d]", where, i)
		canonical, ok := v.address(field, address)
		if !ok {
			continue
		}
		v.unique(&own, field, strconv.Quote(address), canonical)
		if holder, taken := v.byNode[canonical]; taken {
			v.refuse(field, strconv.Quote(address), "must not be a node: %s is this address", holder)
		}
		master := g.Master + " at " + canonical
		if holder, taken := v.masters[master]; taken && holder != where {
			v.refuse(where+".master", strconv.Quote(g.Master), "must be unique: %s follows it at the same sentinel", holder)
			break
		}
		if v.masters == nil {
			v.masters = make(map[string]string)
		}
		v.masters[master] = where
	}
}

// unique refuses a value that another field has already.
func (v *validator) unique(holders *map[string]string, field, value, identity string) {
	if holder, taken := (*holders)[identity]; taken {
		v.refuse(field, value, "must be unique: %s is the same", holder)
		return
	}
	if *holders == nil {
		*holders = make(map[string]string)
	}
	(*holders)[identity] = field
}

// address returns the one spelling of an address, by which equal ones are found.
func (v *validator) address(field, address string) (canonical string, ok bool) {
	bad := func() (string, bool) {
		v.refuse(field, strconv.Quote(address), "must be host:port with a port from 1 to 65535")
		return "", false
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return bad()
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return bad()
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(ip.Unmap().String(), port), true
	}
	if !validHost.MatchString(host) || strings.Trim(host, "0123456789.") == "" { // the latter is a mistyped IP address
		return bad()
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")) + ":" + port, true
}
