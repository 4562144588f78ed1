// Package topology has the commands that check, sign and publish topologies, and plan their changes.
package topology

import (
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

func New(g *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "topology",
		Short: "Check, sign and publish a topology, or take one back",
	},
		newTopologyCheck(g),
		newTopologyPush(g),
		newTopologyWithdraw(g),
		newTopologyKeygen(g),
		newTopologySign(g),
	)
}
