package topology

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
)

const withdrawHelp = `Remove a published topology from the primaries of a file's groups, if its epoch is the given one. With epoch 0, remove what can't
be read as a topology.

Use it for a topology that processes reject (their event is "topology rejected") and whose larger epoch blocks the next push.
Processes publish the one in force again within ten seconds. To undo a topology that they have taken over, publish another one
with a larger epoch: throttlectl topology push.`

func newWithdraw(f *cli.Factory) *cobra.Command {
	o := &cluster.Flags{Factory: f}
	cmd := &cobra.Command{
		Use:   "withdraw EPOCH",
		Short: "Remove a published topology that processes reject",
		Long:  withdrawHelp,
		Args:  cli.Operands("EPOCH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			epoch, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return cli.Usage(fmt.Errorf("EPOCH = %q: must be the number of the epoch to remove", args[0]))
			}
			if o.Topology == "" {
				return cli.Usage(errors.New("--topology is needed: the file of the groups"))
			}
			c, err := o.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			w, err := withdraw(cmd.Context(), c, epoch)
			return errors.Join(o.Print(w), err)
		},
	}
	o.RegisterTopology(cmd)
	o.RegisterLogin(cmd)
	return cmd
}

// withdrawal is the result of topology withdraw.
type withdrawal struct {
	Epoch uint64          `json:"epoch"`
	Nodes []withdrawnNode `json:"nodes"`
}

type withdrawnNode struct {
	Group     string `json:"group"`
	Node      string `json:"node"`
	Before    string `json:"before"` // the epoch that was there
	Withdrawn bool   `json:"withdrawn"`
	Error     string `json:"error,omitempty"`
}

func withdraw(ctx context.Context, c *cluster.Cluster, epoch uint64) (*withdrawal, error) {
	publishers := c.Publishers(ctx, c.Topology.Groups)
	defer publishers.Close()
	w, found := &withdrawal{Epoch: epoch}, false
	var errs []error
	for _, p := range publishers {
		before, done, err := p.Withdraw(ctx, epoch)
		if err != nil {
			errs = append(errs, fmt.Errorf("group %s: %w", p.Group, err))
		}
		node := withdrawnNode{p.Group, p.Node, before, done, errorText(err)}
		found = found || node.Withdrawn
		w.Nodes = append(w.Nodes, node)
	}
	if !found && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("nothing was taken away: epoch %d is not published there", epoch))
	}
	return w, errors.Join(errs...)
}

func (w *withdrawal) Text(out io.Writer) {
	fmt.Fprint(out, "GROUP\tNODE\tBEFORE\tWITHDRAWN\tERROR\n")
	for _, n := range w.Nodes {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", n.Group, cli.Cell(n.Node), n.Before, cli.YesNo(n.Withdrawn), cli.Cell(n.Error))
	}
}
