package main

import "github.com/spf13/cobra"

func newMigrate(g *Factory) *cobra.Command {
	return group(&cobra.Command{
		Use:   "migrate",
		Short: "Look at a migration from one backend to another",
	},
		newMigrateStatus(g),
	)
}
