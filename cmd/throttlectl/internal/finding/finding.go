// Package finding is what commands report that should not be: each with a severity, and what to do.
package finding

import (
	"bytes"
	"cmp"
	"encoding/json"
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

func (s Severity) count(n int) string {
	if s == Warning && n > 1 {
		return fmt.Sprintf("%d warnings", n)
	}
	return fmt.Sprintf("%d %s", n, s)
}

func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that is not as it should be, at one place. What is the same at several servers is reported once, with Detail
// for each.
type Finding struct {
	Severity      Severity
	Check         string
	Group, Server string // both may be empty
	What          string
	Detail        string // what is special here, such as a figure
	Do            string
}

// WritesCheck is the check of servers that refuse writes now, which is worse than anything else.
const WritesCheck = "writes"

type List []Finding

func (f *List) Add(s Severity, check, what, do string) { f.AddDetail(s, check, what, "", do) }

func (f *List) AddDetail(s Severity, check, what, detail, do string) {
	*f = append(*f, Finding{Severity: s, Check: check, What: what, Detail: detail, Do: do})
}

// Sorted returns the findings with the worst first; otherwise it keeps the order.
func (f List) Sorted() List {
	f = slices.Clone(f)
	slices.SortStableFunc(f, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), -cmp.Compare(rank(a), rank(b)))
	})
	return f
}

func rank(f Finding) int {
	if f.Check == WritesCheck {
		return 1
	}
	return 0
}

// merged is a finding with all places that it concerns.
type merged struct {
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
	Where    []place  `json:"where,omitempty"`
}

type place struct {
	Group  string `json:"group,omitempty"`
	Server string `json:"server,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// merge tells each finding once, where it is found first.
func (f List) merge() []merged {
	all := []merged{} // an empty array in JSON
	for _, one := range f {
		i := slices.IndexFunc(all, func(m merged) bool {
			return m.Severity == one.Severity && m.Check == one.Check && m.What == one.What && m.Do == one.Do
		})
		if i < 0 {
			i = len(all)
			all = append(all, merged{Severity: one.Severity, Check: one.Check, What: one.What, Do: one.Do})
		}
		if its := (place{one.Group, one.Server, one.Detail}); its != (place{}) {
			all[i].Where = append(all[i].Where, its)
		}
	}
	return all
}

func (f List) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(f.merge())
	return b.Bytes(), err
}

var styles = []cli.Style{Info: cli.Notable, Warning: cli.Doubtful, Critical: cli.Bad}

// Text writes a finding at one place in a line, and the places below it if there are several.
func (f List) Text(w io.Writer) {
	for _, one := range f.merge() {
		what := cell(one.What)
		if one.Check == WritesCheck {
			what = styles[one.Severity].Of(what)
		}
		if len(one.Where) == 1 {
			what = one.Where[0].around(what)
		}
		fmt.Fprintf(w, "%s %s: %s\n", styles[one.Severity].Of(strings.ToUpper(one.Severity.String())), one.Check, what)
		if len(one.Where) > 1 {
			for _, its := range one.Where {
				fmt.Fprintf(w, "    %s\n", its.around(""))
			}
		}
		if one.Do != "" {
			fmt.Fprintf(w, "  %s\n", one.Do)
		}
	}
}

// around puts the place before what is said of it, and the detail behind.
func (p place) around(what string) string {
	var parts []string
	if where := strings.Join(strings.Fields(p.Group+" "+p.Server), " "); where != "" {
		parts = append(parts, cli.Cell(where))
	}
	if what != "" {
		parts = append(parts, what)
	}
	if p.Detail != "" {
		parts = append(parts, cell(p.Detail))
	}
	return strings.Join(parts, ": ")
}

func cell(text string) string { return cli.Cell(strings.ReplaceAll(text, "\n", "; ")) }

// Err is the error of a command that has findings of a severity or worse, nil without.
func (f List) Err(least Severity) error {
	counts := make([]int, len(Severities))
	total, refusing := 0, 0
	for _, one := range f.merge() {
		if one.Severity >= least {
			counts[one.Severity]++
			total++
		}
		if one.Check == WritesCheck {
			refusing += len(one.Where)
		}
	}
	if total == 0 {
		return nil
	}
	var parts []string
	switch {
	case refusing == 1:
		parts = append(parts, "1 server refuses writes now")
	case refusing > 1:
		parts = append(parts, fmt.Sprintf("%d servers refuse writes now", refusing))
	}
	for s := Critical; s >= least; s-- {
		if n := counts[s]; n > 0 {
			parts = append(parts, s.count(n))
		}
	}
	return cli.Found("found: " + strings.Join(parts, ", "))
}
