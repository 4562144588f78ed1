package inspect

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/limit"
)

const grantHelp = `Let a key spend EXTRA more until its windows end, under every limit of a policy, and print what was given back: a customer is
blocked and needs 1000 more today. It gives back up to EXTRA of what is used, so no key gets more than its quota; for more than
that raise the limit in the file of policies, which applies at once.

Where there is nothing to give back the exit code is 1, and nothing is changed. --dry-run shows what it would give.

`

// NewGrant makes the grant command.
func NewGrant(f *cli.Factory) *cobra.Command {
	o := &keyOptions{Flags: cluster.Flags{Factory: f}}
	var dry bool
	cmd := &cobra.Command{
		Use:   "grant KEY EXTRA",
		Short: "Let a key spend more until its windows end",
		Long:  grantHelp + policies.Help + "\n\n" + cluster.ServerHelp,
		Args:  cli.Operands("KEY", "EXTRA"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			extra, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || extra < 1 || extra > limit.MaxCount {
				return cli.Usage(fmt.Errorf("EXTRA = %q: must be a whole number from 1 to %d", args[1], limit.MaxCount))
			}
			return o.withStored(ctx, args[0], !dry, func(k *keyCounts, req backend.Request, stored backend.Snapshot) error {
				r, err := k.giveBack(ctx, req, stored, dry, extra, func() error { return k.Grant(ctx, req, extra) })
				if err != nil {
					return err
				}
				return o.Print(r)
			})
		},
	}
	o.register(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "change nothing, and print what would be given back")
	return cmd
}
