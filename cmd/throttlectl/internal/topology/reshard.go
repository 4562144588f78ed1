package topology

import (
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

func NewReshard(g *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "reshard",
		Short: "Plan a change of the topology",
	},
		newReshardPlan(g),
	)
}
