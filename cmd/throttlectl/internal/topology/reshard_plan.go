package topology

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/ring"
	"github.com/sluice-go/sluice/router"
)

const planHelp = `Print what the change from one topology to another would move, what that costs, how long it takes, and what running
processes would refuse. No server is asked and nothing is changed: throttlectl topology push does that.

A key that changes its owner is handed over by its first take: two calls more, or three behind a lease, once for each
policy that counts it. That goes on for the longest window of any policy (give all --limit), and the time within which all
processes have heard of the change (--settle). Until then the old groups must stay up.

The shares of the matrix are counted on a million points of the key space, which is good to about 0.1 %. With --sample the
keys of a file are counted, too.`

type planOptions struct {
	*cli.Factory
	limits        []string // of all policies
	settle, drain time.Duration
	keys          int64
	sample        string
}

// NewReshard makes the reshard command.
func NewReshard(f *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "reshard",
		Short: "Plan a change of the topology",
	},
		newPlan(f),
	)
}

func newPlan(f *cli.Factory) *cobra.Command {
	o := &planOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "plan OLD NEW",
		Short: "Print what a new topology would move, and at what cost",
		Long:  planHelp,
		Args:  cli.Operands("OLD", "NEW"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= 2 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return cli.DocumentExtensions, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return cli.Usage(err)
			}
			before, err := router.LoadTopology(args[0])
			if err != nil {
				return err
			}
			after, err := router.LoadTopology(args[1])
			if err != nil {
				return err
			}
			p, err := o.plan(before, after)
			if err != nil {
				return err
			}
			if err := o.Print(p); err != nil {
				return err
			}
			return p.Findings.Err(finding.Warning)
		},
	}
	cmd.Flags().StringArrayVar(&o.limits, "limit", nil, "a `limit` of any policy, such as 100/1m; may be repeated")
	cmd.Flags().DurationVar(&o.settle, "settle", 10*time.Minute, "the applications' router.Config.Settle")
	cmd.Flags().DurationVar(&o.drain, "drain", 25*time.Hour, "the applications' router.Config.Drain")
	cmd.Flags().Int64Var(&o.keys, "keys", 0, "`number` of keys in use during the handover, to tell how many calls it costs")
	cmd.Flags().StringVar(&o.sample, "sample", "", "`file` of keys to count, one a line; - for stdin")
	for _, flag := range []string{"limit", "settle", "drain", "keys"} {
		cli.NoFiles(cmd, flag)
	}
	return cmd
}

func (o *planOptions) validate() error {
	switch {
	case o.settle <= 0:
		return fmt.Errorf("--settle = %v: must be more than 0", o.settle)
	case o.drain < o.settle:
		return fmt.Errorf("--drain = %v: must not be less than --settle", o.drain)
	case o.drain > 2*limit.MaxWindow:
		return fmt.Errorf("--drain = %v: must be at most %v", o.drain, 2*limit.MaxWindow)
	case o.keys < 0:
		return fmt.Errorf("--keys = %d: must be 0 or more", o.keys)
	}
	_, err := policies.ParseLimits(o.limits)
	return err
}

// window is the longest time for which a charge counts.
func (o *planOptions) window() (longest time.Duration) {
	limits, _ := policies.ParseLimits(o.limits) // validate has parsed them
	for _, l := range limits {
		policy := limit.Policy{Limits: []limit.Limit{l}}
		longest = max(longest, state.Horizon(&policy))
	}
	return longest
}

// reshardPlan is what a change of the topology does.
type reshardPlan struct {
	From       uint64         `json:"from"` // epochs
	To         uint64         `json:"to"`
	Moved      float64        `json:"moved"` // of the key space
	Moves      []reshardMove  `json:"moves"`
	Groups     []reshardGroup `json:"groups"`
	Sample     *reshardSample `json:"sample,omitempty"`
	Keys       int64          `json:"keys,omitempty"`
	ExtraCalls int64          `json:"extra_calls,omitempty"` // of so many keys
	Settle     cli.Duration   `json:"settle"`
	Window     cli.Duration   `json:"window"` // the longest one; 0s: none was given
	Handover   cli.Duration   `json:"handover"`
	Findings   finding.List   `json:"findings"`

	shares map[[2]string]float64 // by old and new owner
}

type reshardMove struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Share float64 `json:"share"`
	Keys  *int    `json:"keys,omitempty"` // of the sample
}

type reshardGroup struct {
	Group  string  `json:"group"`
	Before float64 `json:"before"` // 0: it is new
	After  float64 `json:"after"`  // 0: it goes
}

type reshardSample struct {
	Keys  int `json:"keys"`
	Moved int `json:"moved"`
}

// callsToMove is how many more calls the first take of a moved key makes, as Router.Update documents: the seal at the previous
// owner, and the take with what was counted there.
const callsToMove = 2

func (o *planOptions) plan(before, after router.Topology) (*reshardPlan, error) {
	old, err := cluster.TopologyRing(before)
	if err != nil {
		return nil, err
	}
	next, err := cluster.TopologyRing(after)
	if err != nil {
		return nil, err
	}
	p := &reshardPlan{From: before.Epoch, To: after.Epoch, Settle: cli.Duration(o.settle), Window: cli.Duration(o.window()), Keys: o.keys}
	p.countMoves(old, next, before, after)
	if o.sample != "" {
		if err := p.count(o.In, o.sample, old, next); err != nil {
			return nil, err
		}
	}
	p.ExtraCalls = int64(callsToMove * p.Moved * float64(o.keys))
	if p.Moved > 0 {
		p.Handover = p.Window + p.Settle
	}
	p.Findings = append(checkChange(before, after), o.checkTimes(p)...).Sorted()
	return p, nil
}

// countMoves counts on sample points which share moves from where to where.
func (p *reshardPlan) countMoves(old, next *ring.Ring, before, after router.Topology) {
	const points = 1 << 20
	p.shares = make(map[[2]string]float64)
	moved := make(map[[2]string]int)
	for i := range uint64(points) {
		hash := i * 0x9e3779b97f4a7c15 // odd: all are different, and the ring mixes them
		moved[[2]string{old.OwnerHash(hash), next.OwnerHash(hash)}]++
	}
	groups := make(map[string]*reshardGroup)
	add := func(name string) *reshardGroup {
		if groups[name] == nil {
			p.Groups = append(p.Groups, reshardGroup{Group: name})
			groups[name] = &reshardGroup{}
		}
		return groups[name]
	}
	for _, g := range append(append([]router.Group{}, before.Groups...), after.Groups...) {
		add(g.Name)
	}
	for pair, n := range moved {
		share := float64(n) / points
		p.shares[pair] = share
		groups[pair[0]].Before += share
		groups[pair[1]].After += share
	}
	for i := range p.Groups {
		name := p.Groups[i].Group
		p.Groups[i].Before, p.Groups[i].After = groups[name].Before, groups[name].After
	}
	for _, from := range p.Groups { // in the order of the groups
		for _, to := range p.Groups {
			if share := p.shares[[2]string{from.Group, to.Group}]; share > 0 && from.Group != to.Group {
				p.Moves = append(p.Moves, reshardMove{From: from.Group, To: to.Group, Share: share})
				p.Moved += share
			}
		}
	}
}

func (p *reshardPlan) count(stdin io.Reader, path string, old, next *ring.Ring) error {
	p.Sample = new(reshardSample)
	moved := make(map[[2]string]int)
	err := cli.EachKey(stdin, path, func(key string) {
		p.Sample.Keys++
		if from, to := old.Owner(key), next.Owner(key); from != to {
			moved[[2]string{from, to}]++
			p.Sample.Moved++
		}
	})
	if err == nil && p.Sample.Keys == 0 {
		err = fmt.Errorf("--sample: %s has no keys", path)
	}
	for i := range p.Moves {
		n := moved[[2]string{p.Moves[i].From, p.Moves[i].To}]
		p.Moves[i].Keys = &n
	}
	return err
}

func (p *reshardPlan) Text(w io.Writer) {
	fmt.Fprintf(w, "epoch %d -> %d: %s of the key space moves\n\n", p.From, p.To, cli.Percent(p.Moved))
	p.matrix(w)
	if len(p.Moves) > 0 {
		fmt.Fprint(w, "\nFROM\tTO\tSHARE\t")
		if p.Sample != nil {
			fmt.Fprint(w, "KEYS\t")
		}
		fmt.Fprint(w, "\n")
		largest := slices.MaxFunc(p.Moves, func(a, b reshardMove) int { return cmp.Compare(a.Share, b.Share) }).Share
		for _, m := range p.Moves {
			fmt.Fprintf(w, "%s\t%s\t%s\t", m.From, m.To, cli.Percent(m.Share))
			if m.Keys != nil {
				fmt.Fprintf(w, "%d\t", *m.Keys)
			}
			fmt.Fprintf(w, "%s\n", strings.TrimRight(terminal.Bar(m.Share/largest, terminal.BarWidth), " "))
		}
	}
	fmt.Fprintln(w)
	p.costs(w)
	if len(p.Findings) > 0 {
		fmt.Fprintln(w)
		p.Findings.Text(w)
	}
}

// matrix has a row for each group that has keys before, and a column for each that has some after.
func (p *reshardPlan) matrix(w io.Writer) {
	fmt.Fprint(w, "FROM \\ TO")
	for _, to := range p.Groups {
		if to.After > 0 {
			fmt.Fprintf(w, "\t%s", to.Group)
		}
	}
	fmt.Fprint(w, "\tBEFORE\n")
	for _, from := range p.Groups {
		if from.Before == 0 {
			continue
		}
		fmt.Fprint(w, from.Group)
		for _, to := range p.Groups {
			if to.After > 0 {
				share := "-"
				if part := p.shares[[2]string{from.Group, to.Group}]; part > 0 {
					share = cli.Percent(part)
				}
				fmt.Fprintf(w, "\t%s", share)
			}
		}
		fmt.Fprintf(w, "\t%s\n", cli.Percent(from.Before))
	}
	fmt.Fprint(w, "AFTER")
	for _, to := range p.Groups {
		if to.After > 0 {
			fmt.Fprintf(w, "\t%s", cli.Percent(to.After))
		}
	}
	fmt.Fprint(w, "\n")
}

func (p *reshardPlan) costs(w io.Writer) {
	if p.Sample != nil {
		fmt.Fprintf(w, "sample: %d of %d keys move, %s\n", p.Sample.Moved, p.Sample.Keys, cli.Percent(float64(p.Sample.Moved)/float64(p.Sample.Keys)))
	}
	if p.Moved == 0 {
		fmt.Fprint(w, "no key changes its owner: nothing is handed over\n")
		return
	}
	calls := ""
	if p.Keys > 0 {
		calls = fmt.Sprintf(": about %d for %d keys", p.ExtraCalls, p.Keys)
	}
	fmt.Fprintf(w, "extra calls: %d for each key that moves, %d behind a lease, once a policy%s\n", callsToMove, callsToMove+1, calls)
	long := fmt.Sprintf("%v, the longest window of %v and %v to settle", p.Handover, p.Window, p.Settle)
	if p.Window == 0 {
		long = fmt.Sprintf("the longest window of any policy and %v to settle", p.Settle)
	}
	fmt.Fprintf(w, "handover: %s; until then the old groups must stay up\n", long)
	for _, g := range p.Groups {
		if g.After == 0 {
			fmt.Fprintf(w, "%s goes: stop its servers only after the handover\n", g.Group)
		}
	}
}
