package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// severity is how much a finding matters.
type severity int

const (
	info     severity = iota // worth knowing; no reason to fail
	warning                  // mend it before it hurts
	critical                 // limits don't hold, or will not
)

var severities = []string{"info", "warning", "critical"}

func (s severity) String() string { return severities[s] }

// MarshalText makes severities words in JSON.
func (s severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// finding is one thing that is not as it should be.
type finding struct {
	Severity severity `json:"severity"`
	Check    string   `json:"check"`
	Group    string   `json:"group,omitempty"`
	Server   string   `json:"server,omitempty"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
}

type findings []finding

func (f *findings) add(s severity, check, what, do string) {
	*f = append(*f, finding{Severity: s, Check: check, What: what, Do: do})
}

// sorted has the worst first, and otherwise keeps the order.
func (f findings) sorted() findings {
	f = append(findings{}, f...) // in JSON an array, also where there are none
	slices.SortStableFunc(f, func(a, b finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return f
}

func (f findings) text(w io.Writer) {
	for _, one := range f {
		where := strings.Join(strings.Fields(one.Group+" "+one.Server), " ")
		if where != "" {
			where = cell(where) + ": "
		}
		fmt.Fprintf(w, "%s %s: %s%s\n", strings.ToUpper(one.Severity.String()), one.Check, where, cell(strings.ReplaceAll(one.What, "\n", "; ")))
		if one.Do != "" {
			fmt.Fprintf(w, "  %s\n", one.Do)
		}
	}
}

// err is what a command ends with that has found something of a severity or worse.
func (f findings) err(least severity) error {
	counts := make([]int, len(severities))
	total := 0
	for _, one := range f {
		if one.Severity >= least {
			counts[one.Severity]++
			total++
		}
	}
	if total == 0 {
		return nil
	}
	var parts []string
	for s := critical; s >= least; s-- {
		if n := counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return foundError{"found: " + strings.Join(parts, ", ")}
}

// foundError ends a command that has done its work, and found what should not be.
type foundError struct{ text string }

func (e foundError) Error() string { return e.text }
