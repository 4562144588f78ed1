package inspect

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
	"github.com/sluice-go/sluice/ring"
	"github.com/sluice-go/sluice/router"
)

const ringHelp = `Print how a topology shares the keys out over its groups. No server is asked.

  SHARE      the part of all possible keys that the group owns
  IDEAL      its part of the weight of all groups
  DEVIATION  how far the share is off the ideal; the ring keeps it within a few percent
  KEYS       with --sample: how many of these keys it owns, and how far that is off the ideal. Keys are spread evenly,
             requests need not be: one hot key is one group's load`

// NewRing makes the ring command.
func NewRing(f *cli.Factory) *cobra.Command {
	o := &cluster.Flags{Factory: f}
	var sample string
	cmd := &cobra.Command{
		Use:               "ring --topology FILE",
		Short:             "Draw how the keys are shared out over the groups",
		Long:              ringHelp,
		Args:              cli.Operands(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := o.LoadTopology()
			if err != nil {
				return err
			}
			r, err := cluster.TopologyRing(t)
			if err != nil {
				return err
			}
			p := newRingReport(t, r)
			if sample != "" {
				if err := p.count(r, o.In, sample); err != nil {
					return err
				}
			}
			return o.Print(p)
		},
	}
	o.RegisterTopology(cmd)
	cmd.Flags().StringVar(&sample, "sample", "", "`file` of keys to count, one a line; - for stdin")
	return cmd
}

// ringReport is how keys are shared out.
type ringReport struct {
	Epoch  uint64       `json:"epoch"`
	Seed   uint64       `json:"seed"`
	Sample int          `json:"sample,omitempty"` // keys counted
	Groups []groupShare `json:"groups"`
}

type groupShare struct {
	Group         string   `json:"group"`
	Weight        int      `json:"weight"`
	Share         float64  `json:"share"`
	Ideal         float64  `json:"ideal"`
	Deviation     float64  `json:"deviation"`                // of the share from the ideal, relative
	Keys          *int     `json:"keys,omitempty"`           // of the sample
	KeysDeviation *float64 `json:"keys_deviation,omitempty"` // likewise
}

// newRingReport has the groups in the order of the topology.
func newRingReport(t router.Topology, r *ring.Ring) *ringReport {
	p := &ringReport{Epoch: t.Epoch, Seed: t.Seed}
	shares, total := make(map[string]float64), 0
	for m, share := range r.Shares() {
		shares[m.Name] = share
		total += m.Weight
	}
	for _, g := range t.Groups {
		s := groupShare{Group: g.Name, Weight: max(g.Weight, 1), Share: shares[g.Name]}
		s.Ideal = float64(s.Weight) / float64(total)
		s.Deviation = s.Share/s.Ideal - 1
		p.Groups = append(p.Groups, s)
	}
	return p
}

// count adds what the groups own of the keys of a file.
func (p *ringReport) count(r *ring.Ring, stdin io.Reader, path string) error {
	owned := make(map[string]int)
	err := cli.EachKey(stdin, path, func(key string) {
		owned[r.Owner(key)]++
		p.Sample++
	})
	if err != nil {
		return err
	}
	if p.Sample == 0 {
		return fmt.Errorf("--sample: %s has no keys", path)
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		n := owned[g.Group]
		deviation := float64(n)/(float64(p.Sample)*g.Ideal) - 1
		g.Keys, g.KeysDeviation = &n, &deviation
	}
	return nil
}

func (p *ringReport) Text(w io.Writer) {
	largest := 0.0
	for _, g := range p.Groups {
		largest = max(largest, g.Share, g.Ideal)
	}
	fmt.Fprint(w, "GROUP\tWEIGHT\tSHARE\tIDEAL\tDEVIATION\t")
	if p.Sample > 0 {
		fmt.Fprint(w, "KEYS\tDEVIATION\t")
	}
	fmt.Fprint(w, "\n")
	for _, g := range p.Groups {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t", g.Group, g.Weight, cli.Percent(g.Share), cli.Percent(g.Ideal), signed(g.Deviation))
		if g.Keys != nil {
			fmt.Fprintf(w, "%d\t%s\t", *g.Keys, signed(*g.KeysDeviation))
		}
		fmt.Fprintf(w, "%s\n", strings.TrimRight(terminal.Bar(g.Share/largest, terminal.BarWidth), " "))
	}
}

func signed(part float64) string { return fmt.Sprintf("%+.2f%%", 100*part) }
