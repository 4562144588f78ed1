package inspect

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

const usageHelp = `Print the cost that was charged to a key and not given back within the last interval. It comes from the sliding limit
of the policy with the finest precision whose window covers the interval, and is blurred by that precision: other limits don't
remember when they were charged.

`

// NewUsage makes the usage command.
func NewUsage(f *cli.Factory) *cobra.Command {
	o := &keyOptions{Flags: cluster.Flags{Factory: f}}
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "usage KEY",
		Short: "Print what a key has used in the last minute, hour, ...",
		Long:  usageHelp + policies.Help + "\n\n" + cluster.ServerHelp,
		Args:  cli.Operands("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := o.Policy(args[0])
			if err != nil {
				return err
			}
			var nothing state.State
			if _, _, ok := nothing.Usage(&policy, state.At{}, interval); !ok {
				return cli.Usage(fmt.Errorf("--interval = %v: must be more than 0 and within the window of a sliding limit, "+
					"such as 240/1h~1m", interval))
			}
			return o.withStored(cmd.Context(), args[0], false, func(k *keyCounts, req backend.Request, stored backend.Snapshot) error {
				n, by, _ := stored.State.Usage(&policy, state.At{Micros: stored.Now}, interval)
				return o.Print(keyUsage{req.Key, policy.Name, k.group, interval.String(), n, by})
			})
		},
	}
	o.register(cmd)
	cmd.Flags().DurationVar(&interval, "interval", time.Minute, "how far to look back")
	cli.NoFiles(cmd, "interval")
	return cmd
}

// keyUsage is what a key has used within the interval.
type keyUsage struct {
	Key      string      `json:"key"`
	Policy   string      `json:"policy"`
	Group    string      `json:"group,omitempty"`
	Interval string      `json:"interval"`
	Used     int64       `json:"used"`
	By       limit.Limit `json:"by"` // the limit that it was read from
}

func (u keyUsage) Text(w io.Writer) {
	fmt.Fprint(w, "KEY\tPOLICY\tGROUP\tINTERVAL\tUSED\tBY\n")
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", cli.Cell(u.Key), cli.Cell(u.Policy), cli.Cell(u.Group), u.Interval, u.Used, u.By)
}
