package router

import (
	"fmt"
	"strconv"
	"strings"
)

// CheckHistory returns nil if a process can start with the topology, and otherwise a [*ConfigError]: its chain of Previous must
// lead back to epoch 1 or to a baseline.
func (t Topology) CheckHistory() error { return t.history(0) }

// history refuses a topology if it doesn't name all topologies under which keys may still have counts: since the one that is in
// force here, or since the first one if that is 0.
func (t *Topology) history(inForce uint64) error {
	field := "previous"
	for t.Previous != nil {
		t, field = t.Previous, field+".previous"
	}
	if t.Baseline || t.Epoch <= 1 || inForce > 0 && t.Epoch <= inForce+1 {
		return nil
	}
	since := ""
	if inForce > 0 {
		since = fmt.Sprintf(" (this process knows those up to %d)", inForce)
	}
	return &ConfigError{Field: field, Value: "none", Bound: fmt.Sprintf(
		"must be the topology before epoch %d%s; or epoch %d must have \"baseline\": true, once every window that began before it is over",
		t.Epoch, since, t.Epoch)}
}

// Changes says how two topologies differ in what decides the owner of a key, such as `group "eu-3" is new`. It is empty if each
// key has the same owner under both.
func Changes(before, after Topology) string {
	var all []string
	if before.Seed != after.Seed {
		all = append(all, fmt.Sprintf("the seed is %d, was %d", after.Seed, before.Seed))
	}
	weights := func(t Topology) map[string]int {
		m := make(map[string]int, len(t.Groups))
		for _, g := range t.Groups {
			m[g.Name] = max(g.Weight, 1)
		}
		return m
	}
	was, is := weights(before), weights(after)
	for _, g := range after.Groups {
		switch old := was[g.Name]; {
		case old == 0:
			all = append(all, fmt.Sprintf("group %q is new", g.Name))
		case old != is[g.Name]:
			all = append(all, fmt.Sprintf("group %q has weight %d, had %d", g.Name, is[g.Name], old))
		}
	}
	for _, g := range before.Groups {
		if is[g.Name] == 0 {
			all = append(all, fmt.Sprintf("group %q is missing", g.Name))
		}
	}
	const most = 4
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return strings.Join(all, ", ")
}

// conflictWith is the error about a topology that has other owners than the one in force under the same epoch.
func (t *Topology) conflictWith(other Topology, holder string) error {
	return &ConfigError{Field: "epoch", Value: strconv.FormatUint(t.Epoch, 10), Err: ErrTopologyConflict, Bound: fmt.Sprintf(
		"must be %d, with epoch %d as its \"previous\": keys change their owner against what %s has as epoch %d (%s)",
		t.Epoch+1, t.Epoch, holder, t.Epoch, Changes(other, *t))}
}

// sameHistory reports whether two topologies name the same ones before them, whatever their addresses.
func sameHistory(a, b *Topology) bool {
	for a, b = a.Previous, b.Previous; a != nil && b != nil; a, b = a.Previous, b.Previous {
		if a.Digest() != b.Digest() {
			return false
		}
	}
	return a == nil && b == nil
}
