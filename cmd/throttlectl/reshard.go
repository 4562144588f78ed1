package main

import "github.com/spf13/cobra"

func newReshard(g *Factory) *cobra.Command {
	return group(&cobra.Command{
		Use:   "reshard",
		Short: "Plan a change of the topology",
	},
		newReshardPlan(g),
	)
}
