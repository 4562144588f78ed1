package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/throttler/insight"
)

// parts is what only some applications give their handlers: of all processes together, counted since they started.
type parts struct {
	Names      map[string]string    `json:"names,omitempty"`       // of the keys that are shown, by --names
	NearLimits []insight.NearKey    `json:"near_limits,omitempty"` // least left first
	Nodes      []*nodeView          `json:"nodes,omitempty"`
	Router     *insight.RouterStats `json:"router,omitempty"`
	Lease      *lease.Stats         `json:"lease,omitempty"`
	Dual       *dual.Stats          `json:"dual,omitempty"`
	Flags      []*flagView          `json:"flags,omitempty"` // one, where all processes agree
}

// nodeView is a node as the processes see it that see the worst of it.
type nodeView struct {
	insight.Node
	Processes int `json:"processes"`  // that report it
	NotClosed int `json:"not_closed"` // that have its breaker open or half-open
}

// flagView is a state of a flag, and how many processes have it.
type flagView struct {
	insight.Flag
	Processes int `json:"processes"`
}

func (p *parts) add(r *insight.Report) {
	p.NearLimits = append(p.NearLimits, r.NearLimits...)
	for _, n := range r.Nodes {
		p.addNode(n)
	}
	if s := r.Router; s != nil {
		sum := orNew(&p.Router)
		sum.Handovers += s.Handovers
		sum.Redirects += s.Redirects
		sum.Bounded += s.Bounded
	}
	if s := r.Lease; s != nil {
		sum := orNew(&p.Lease)
		sum.Leased += s.Leased
		sum.Denied += s.Denied
		sum.Forwarded += s.Forwarded
		sum.Fetches += s.Fetches
		sum.Returned += s.Returned
		sum.Lost += s.Lost
		sum.Stranded += s.Stranded
		sum.Keys += s.Keys
		sum.OnCredit += s.OnCredit
		sum.Flushes += s.Flushes
		sum.Debt += s.Debt
		sum.DebtAge = max(sum.DebtAge, s.DebtAge)
		sum.LostCharges += s.LostCharges
		sum.Overshoot = max(sum.Overshoot, s.Overshoot)
	}
	if s := r.Dual; s != nil {
		sum := orNew(&p.Dual)
		sum.Old += s.Old
		sum.New += s.New
		sum.Handovers += s.Handovers
		sum.Redirects += s.Redirects
		sum.Bounded += s.Bounded
		sum.Shadow.Agreed += s.Shadow.Agreed
		sum.Shadow.Denied += s.Shadow.Denied
		sum.Shadow.Allowed += s.Shadow.Allowed
		sum.Shadow.Remaining += s.Shadow.Remaining
		sum.Shadow.Failed += s.Shadow.Failed
		sum.Shadow.Dropped += s.Shadow.Dropped
	}
	if r.Flag != nil {
		i := slices.IndexFunc(p.Flags, func(f *flagView) bool { return f.Flag == *r.Flag })
		if i < 0 {
			i, p.Flags = len(p.Flags), append(p.Flags, &flagView{Flag: *r.Flag})
		}
		p.Flags[i].Processes++
	}
}

func orNew[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

func (p *parts) addNode(n insight.Node) {
	i := slices.IndexFunc(p.Nodes, func(v *nodeView) bool { return v.Group == n.Group && v.Node.Node == n.Node })
	if i < 0 {
		i, p.Nodes = len(p.Nodes), append(p.Nodes, &nodeView{Node: n})
	}
	v := p.Nodes[i]
	if badness(n) > badness(v.Node) {
		v.Role, v.Breaker, v.Readable = n.Role, n.Breaker, n.Readable
	}
	if n.RTT > v.RTT {
		v.RTT, v.Ahead, v.LastHeartbeat = n.RTT, n.Ahead, n.LastHeartbeat
	}
	v.Latency, v.Age = max(v.Latency, n.Latency), max(v.Age, n.Age)
	v.Processes++
	if n.Breaker != "closed" {
		v.NotClosed++
	}
}

// badness orders what processes say of a node.
func badness(n insight.Node) int {
	switch {
	case n.Breaker == "open":
		return 3
	case n.Breaker != "closed":
		return 2
	case n.Role == "replica" && !n.Readable:
		return 1
	}
	return 0
}

func (n *nodeView) state() string {
	switch badness(n.Node) {
	case 0:
		return "ok"
	case 1:
		return "not fit to read"
	}
	state := "breaker " + cli.Cell(n.Breaker)
	if n.NotClosed < n.Processes {
		state += fmt.Sprintf(" in %d of %d processes", n.NotClosed, n.Processes)
	}
	return state
}

// finish keeps that many keys, each once.
func (p *parts) finish(keys int) {
	left := func(k insight.NearKey) float64 { return float64(k.Remaining) / float64(k.Limit.Quota()) }
	slices.SortFunc(p.NearLimits, func(a, b insight.NearKey) int {
		return cmp.Or(cmp.Compare(left(a), left(b)), strings.Compare(a.Key, b.Key), strings.Compare(a.Policy, b.Policy),
			strings.Compare(a.Limit.String(), b.Limit.String()))
	})
	type keyed struct{ key, policy, limit string }
	seen := make(map[keyed]bool)
	p.NearLimits = slices.DeleteFunc(p.NearLimits, func(k insight.NearKey) bool {
		of := keyed{k.Key, k.Policy, k.Limit.String()}
		again := seen[of]
		seen[of] = true
		return again
	})
	p.NearLimits = p.NearLimits[:min(keys, len(p.NearLimits))]
}

func (p *parts) text(w io.Writer, now time.Time) {
	if len(p.NearLimits) > 0 {
		fmt.Fprint(w, "\nNEAR A LIMIT\tPOLICY\tLIMIT\tLEFT THEN\tENDS IN\n")
		for _, k := range p.NearLimits {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", p.shown(k.Key), cli.Cell(k.Policy), cli.Cell(k.Limit.String()), k.Remaining,
				cli.SecondsText(max(0, k.ResetAt.Sub(now)).Round(time.Second).Seconds()))
		}
	}
	if len(p.Nodes) > 0 {
		fmt.Fprint(w, "\nGROUP\tNODE\tROLE\tSTATE\tCALLS TAKE\tROUND TRIP\tCLOCK AHEAD\tREPLICA AGE\n")
		for _, n := range p.Nodes {
			age := "-"
			if n.Role == "replica" {
				age = short(n.Age)
			}
			ahead := "-"
			if n.RTT > 0 {
				ahead = n.Ahead.Round(100 * time.Microsecond).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.Cell(n.Group), cli.Cell(n.Node.Node), cli.Cell(n.Role), n.state(),
				short(n.Latency), short(n.RTT), ahead, age)
		}
	}
	if s := p.Router; s != nil {
		fmt.Fprint(w, "\nKEYS THAT MOVE\tHANDOVERS\tREDIRECTED\tBOUNDED\n")
		fmt.Fprintf(w, "between groups\t%d\t%d\t%d\n", s.Handovers, s.Redirects, s.Bounded)
	}
	if s := p.Lease; s != nil {
		share := "-"
		local := s.Leased + s.Denied + s.OnCredit
		if all := local + s.Forwarded + s.Fetches + s.Flushes; all > 0 {
			share = cli.Percent(float64(local) / float64(all))
		}
		fmt.Fprint(w, "\nLEASES\tADMITTED\tDENIED\tFORWARDED\tBATCHES\tUNSPENT\tRETURNED\tLOST\tKEYS\tWITHOUT A CALL\n")
		fmt.Fprintf(w, "\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n",
			s.Leased, s.Denied, s.Forwarded, s.Fetches, s.Stranded, s.Returned, s.Lost, s.Keys, share)
		if s.Flushes > 0 || s.Debt > 0 {
			fmt.Fprint(w, "\nON CREDIT\tADMITTED\tCHARGES\tOWED\tOLDEST\tLOST\tMOST ABOVE MAX\n")
			fmt.Fprintf(w, "\t%d\t%d\t%d\t%s\t%d\t%d\n", s.OnCredit, s.Flushes, s.Debt, short(s.DebtAge), s.LostCharges, s.Overshoot)
		}
	}
	p.migrationText(w)
}

func (p *parts) migrationText(w io.Writer) {
	if len(p.Flags) > 0 {
		fmt.Fprint(w, "\nFLAG\tPERCENT\tVERSION\tREASON\tPROCESSES\tSTATE\n")
	}
	for _, f := range p.Flags {
		state := "ok"
		if f.Stale {
			state = "stale"
		}
		if f.Error != "" {
			state = cli.Cell(f.Error)
		}
		fmt.Fprintf(w, "%s\t%g\t%d\t%s\t%d\t%s\n", cli.Cell(f.Name), f.Percent, f.Version, cli.Cell(f.Reason), f.Processes, state)
	}
	if s := p.Dual; s != nil {
		fmt.Fprint(w, "\nMIGRATION\tBY OLD\tBY NEW\tHANDOVERS\tREDIRECTED\tBOUNDED\n")
		fmt.Fprintf(w, "\t%d\t%d\t%d\t%d\t%d\n", s.Old, s.New, s.Handovers, s.Redirects, s.Bounded)
		if s.Shadow != (dual.ShadowStats{}) {
			fmt.Fprint(w, "OTHER SIDE\tAGREED\tDENIED\tALLOWED\tREMAINING\tFAILED\tDROPPED\n")
			fmt.Fprintf(w, "\t%d\t%d\t%d\t%d\t%d\t%d\n",
				s.Shadow.Agreed, s.Shadow.Denied, s.Shadow.Allowed, s.Shadow.Remaining, s.Shadow.Failed, s.Shadow.Dropped)
		}
	}
}

// short is a duration with two or three digits, or "-" if it isn't known.
func short(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	for unit := time.Second; unit >= time.Microsecond; unit /= 10 {
		if d >= 10*unit {
			return d.Round(unit).String()
		}
	}
	return d.String()
}
