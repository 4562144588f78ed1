package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

// migration is the variable of an application. A missing part is nil; a side without the field isn't reachable.
type migration struct {
	Flag *flag `json:"flag,omitempty"`
	Old  *side `json:"old,omitempty"`
	New  *side `json:"new,omitempty"`
	Dual *dual `json:"dual,omitempty"`
}

type flag struct {
	Name    string  `json:"name"`
	Percent float64 `json:"percent"`
	Version uint64  `json:"version"`
	Reason  string  `json:"reason"`
	Stale   bool    `json:"stale"`
	Error   string  `json:"error"`
}

type side struct {
	Name      string `json:"name"`
	Reachable bool   `json:"reachable"`
	Error     string `json:"error"`
	RTTMicros int64  `json:"rtt_micros"`
}

type dual struct {
	Old        uint64  `json:"old"` // decisions made by the old side
	New        uint64  `json:"new"`
	Handovers  uint64  `json:"handovers"`
	Redirected uint64  `json:"redirected"`
	Bounded    uint64  `json:"bounded"`
	Shadow     *shadow `json:"shadow,omitempty"`
}

type shadow struct {
	Agreed    uint64 `json:"agreed"`
	Denied    uint64 `json:"denied"`
	Allowed   uint64 `json:"allowed"`
	Remaining uint64 `json:"remaining"`
	Failed    uint64 `json:"failed"`
	Dropped   uint64 `json:"dropped"`
}

// parseMigration finds the variable in a document of variables, or takes the document for it.
func parseMigration(data []byte, name string) (*migration, error) {
	var vars map[string]json.RawMessage
	if err := json.Unmarshal(data, &vars); err != nil {
		return nil, fmt.Errorf("not an object of variables: %w", err)
	}
	raw, ok := vars[name]
	if !ok {
		if !slices.ContainsFunc([]string{"flag", "old", "new", "dual"}, func(part string) bool { return vars[part] != nil }) {
			return nil, fmt.Errorf("no variable %q: does the application publish it?", name)
		}
		raw = data
	}
	var m *migration
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("variable %q: %w", name, err)
	}
	if m == nil {
		return nil, fmt.Errorf("variable %q is null", name)
	}
	return m, nil
}

// unreachable joins an error for each side that isn't reachable.
func (m *migration) unreachable() error {
	var errs []error
	for _, side := range m.sides() {
		switch s := side.side; {
		case s == nil:
			errs = append(errs, fmt.Errorf("the %s side isn't reported", side.which))
		case !s.Reachable:
			errs = append(errs, fmt.Errorf("the %s side, %s, isn't reachable: %s", side.which, cli.Cell(s.Name), cli.Cell(s.Error)))
		}
	}
	return errors.Join(errs...)
}

type namedSide struct {
	which string
	*side
	decisions func(*dual) uint64
}

func (m *migration) sides() []namedSide {
	return []namedSide{
		{"old", m.Old, func(d *dual) uint64 { return d.Old }},
		{"new", m.New, func(d *dual) uint64 { return d.New }},
	}
}

// status is a migration at one time.
type status struct {
	Time time.Time `json:"time,omitzero"` // only in a watch
	*migration
}

func (s status) Text(w io.Writer) {
	if !s.Time.IsZero() {
		fmt.Fprintf(w, "%s\n", s.Time.Format(cli.TimeLayout))
	}
	if f := s.Flag; f != nil {
		fmt.Fprint(w, "FLAG\tPERCENT\tVERSION\tREASON\tSTALE\tERROR\n")
		fmt.Fprintf(w, "%s\t%v\t%d\t%s\t%s\t%s\n\n",
			cli.Cell(f.Name), f.Percent, f.Version, cli.Cell(f.Reason), cli.YesNo(f.Stale), cli.Cell(f.Error))
	}
	fmt.Fprint(w, "SIDE\tBACKEND\tREACHABLE\tRTT\tDECISIONS\tERROR\n")
	for _, side := range s.sides() {
		name, reachable, rtt, decisions, problem := "-", "-", "-", "-", "-"
		if b := side.side; b != nil {
			name, reachable, problem = cli.Cell(b.Name), cli.YesNo(b.Reachable), cli.Cell(b.Error)
			if b.RTTMicros > 0 {
				rtt = (time.Duration(b.RTTMicros) * time.Microsecond).String()
			}
		}
		if s.Dual != nil {
			decisions = strconv.FormatUint(side.decisions(s.Dual), 10)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", side.which, name, reachable, rtt, decisions, problem)
	}
	if d := s.Dual; d != nil {
		fmt.Fprint(w, "\nHANDOVERS\tREDIRECTED\tBOUNDED\n")
		fmt.Fprintf(w, "%d\t%d\t%d\n", d.Handovers, d.Redirected, d.Bounded)
		if sh := d.Shadow; sh != nil {
			fmt.Fprint(w, "\nSHADOW\tAGREED\tDENIED\tALLOWED\tREMAINING\tFAILED\tDROPPED\n")
			fmt.Fprintf(w, "verdicts\t%d\t%d\t%d\t%d\t%d\t%d\n", sh.Agreed, sh.Denied, sh.Allowed, sh.Remaining, sh.Failed, sh.Dropped)
		}
	}
	if !s.Time.IsZero() {
		fmt.Fprintln(w)
	}
}
