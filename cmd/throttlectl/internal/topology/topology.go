// Package topology has the commands that check, sign and publish topologies, and plan their changes.
package topology

import (
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

// New makes the topology command.
func New(f *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "topology",
		Short: "Check, sign and publish a topology, or take one back",
	},
		newCheck(f),
		newPush(f),
		newWithdraw(f),
		newKeygen(f),
		newSign(f),
	)
}
