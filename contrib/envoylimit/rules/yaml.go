package rules

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// maxNodes bounds what aliases of one file may expand to.
const maxNodes = 1 << 20

// maxDepth bounds how deep descriptors and merges may be: an alias may stand in what it names.
const maxDepth = 64

// reader reads the nodes of one file. It reports problems and goes on.
type reader struct {
	file  string
	found *problems
	nodes int // visited, expanded aliases included
}

func (r *reader) problem(n *yaml.Node, format string, args ...any) {
	r.found.add(r.file, n.Line, format, args...)
}

// document parses a text to the node of its only document; nil after a problem.
func (r *reader) document(text []byte) *yaml.Node {
	var document yaml.Node
	err := yaml.Load(text, &document)
	if bad, ok := errors.AsType[*yaml.LoadError](err); ok && bad.Mark.Line > 0 {
		r.found.add(r.file, bad.Mark.Line, "%s", withoutNames(bad.Message))
		return nil
	}
	if err != nil || len(document.Content) != 1 {
		r.found.add(r.file, 0, "must be one YAML document")
		return nil
	}
	return document.Content[0]
}

// withoutNames leaves out what the parser repeats of the file: the names of anchors.
func withoutNames(message string) string {
	if strings.Contains(message, "anchor") {
		return "unknown anchor"
	}
	return message
}

// target follows an alias.
func (r *reader) target(n *yaml.Node) *yaml.Node {
	if r.nodes++; r.nodes == maxNodes {
		r.problem(n, "aliases expand to too much")
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// members are the members of an object, without those that are null. Unknown ones and ones given twice are problems.
func (r *reader) members(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	members := make(map[string]*yaml.Node)
	r.collect(r.target(n), what, known, members, 0)
	for name, value := range members {
		if value == nil {
			delete(members, name)
		}
	}
	return members
}

// collect adds members that are not there yet: those of an object go before those that it merges.
func (r *reader) collect(n *yaml.Node, what string, known []string, into map[string]*yaml.Node, depth int) {
	switch {
	case depth > maxDepth:
		r.problem(n, "merges must be at most %d deep", maxDepth)
		return
	case r.nodes >= maxNodes:
		return
	case n.Kind != yaml.MappingNode:
		r.problem(n, "%s must be an object", what)
		return
	}
	lines := make(map[string]int)
	var merged []*yaml.Node
	for i := 0; i < len(n.Content); i += 2 {
		name, value := r.target(n.Content[i]), r.target(n.Content[i+1])
		switch {
		case name.Kind == yaml.ScalarNode && name.ShortTag() == "!!merge":
			merged = append(merged, value)
			continue
		case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str":
			r.problem(name, "the name of a member must be a text")
			continue
		case !slices.Contains(known, name.Value):
			r.problem(name, "%s has no member %q", what, name.Value)
			continue
		}
		if line, twice := lines[name.Value]; twice {
			r.problem(name, "%s is given twice, first in line %d", name.Value, line)
			continue
		}
		lines[name.Value] = name.Line
		if _, has := into[name.Value]; has {
			continue
		}
		if isNull(value) {
			value = nil
		}
		into[name.Value] = value
	}
	for _, m := range merged {
		if m.Kind != yaml.SequenceNode {
			r.collect(m, "what is merged", known, into, depth+1)
			continue
		}
		for _, element := range m.Content {
			r.collect(r.target(element), "what is merged", known, into, depth+1)
		}
	}
}

// list are the elements of a list; none of a nil node.
func (r *reader) list(n *yaml.Node, what string) []*yaml.Node {
	if n == nil || r.nodes >= maxNodes {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.problem(n, "%s must be a list", what)
		return nil
	}
	elements := make([]*yaml.Node, len(n.Content))
	for i, element := range n.Content {
		elements[i] = r.target(element)
	}
	return elements
}

// text is a text as it is written: 7, 007 and "7" are different ones. Empty of a nil node.
func (r *reader) text(n *yaml.Node, what string) string {
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode {
		r.problem(n, "%s must be a text", what)
		return ""
	}
	return n.Value
}

// flag is true or false, in any spelling of YAML 1.1; false of a nil node.
func (r *reader) flag(n *yaml.Node, what string) bool {
	if n == nil {
		return false
	}
	if n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			return true
		case "false", "no", "off", "n":
			return false
		}
	}
	r.problem(n, "%s must be true or false", what)
	return false
}

// number is a whole number from 0 to 2^32-1; 0 of a nil node.
func (r *reader) number(n *yaml.Node, what string) uint32 {
	if n == nil {
		return 0
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
		if v, err := strconv.ParseUint(strings.ReplaceAll(n.Value, "_", ""), 0, 32); err == nil {
			return uint32(v)
		}
	}
	r.problem(n, "%s must be a whole number from 0 to 4294967295", what)
	return 0
}

// fraction is a number from 0 to below 1; 0 of a nil node.
func (r *reader) fraction(n *yaml.Node, what string) float64 {
	if n == nil {
		return 0
	}
	if n.Kind == yaml.ScalarNode {
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil && v >= 0 && v < 1 {
			return v
		}
	}
	r.problem(n, "%s must be a number from 0 to below 1", what)
	return 0
}

// duration is a positive duration in Go's notation; 0 of a nil node.
func (r *reader) duration(n *yaml.Node, what string) time.Duration {
	if n == nil {
		return 0
	}
	if n.Kind == yaml.ScalarNode {
		if d, err := time.ParseDuration(n.Value); err == nil && d > 0 {
			return d
		}
	}
	r.problem(n, "%s must be a positive duration such as 500ms or 5s", what)
	return 0
}
