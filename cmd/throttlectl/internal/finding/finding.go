// Package finding is what commands report that should not be: each with a severity, and what to do.
package finding

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

// Severity is how much a finding matters.
type Severity int

const (
	Info     Severity = iota // worth knowing
	Warning                  // to be fixed before it hurts
	Critical                 // limits don't hold, or may soon not
)

var Severities = []string{"info", "warning", "critical"}

func (s Severity) String() string { return Severities[s] }

func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`
	Group    string   `json:"group,omitempty"`
	Server   string   `json:"server,omitempty"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
}

type List []Finding

func (f *List) Add(s Severity, check, what, do string) {
	*f = append(*f, Finding{Severity: s, Check: check, What: what, Do: do})
}

// Sorted returns the findings with the most severe first; otherwise it keeps the order.
func (f List) Sorted() List {
	f = append(List{}, f...) // an empty array in JSON
	slices.SortStableFunc(f, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return f
}

func (f List) Text(w io.Writer) {
	for _, one := range f {
		where := strings.Join(strings.Fields(one.Group+" "+one.Server), " ")
		if where != "" {
			where = cli.Cell(where) + ": "
		}
		fmt.Fprintf(w, "%s %s: %s%s\n", strings.ToUpper(one.Severity.String()), one.Check, where, cli.Cell(strings.ReplaceAll(one.What, "\n", "; ")))
		if one.Do != "" {
			fmt.Fprintf(w, "  %s\n", one.Do)
		}
	}
}

// Err is the error of a command that has findings of a severity or worse, nil without.
func (f List) Err(least Severity) error {
	counts := make([]int, len(Severities))
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
	for s := Critical; s >= least; s-- {
		if n := counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return cli.Found("found: " + strings.Join(parts, ", "))
}
