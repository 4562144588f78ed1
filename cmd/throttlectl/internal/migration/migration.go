// Package migration has the command that prints how a migration between backends stands.
package migration

import (
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

func New(g *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "migrate",
		Short: "Look at a migration from one backend to another",
	},
		newMigrateStatus(g),
	)
}
