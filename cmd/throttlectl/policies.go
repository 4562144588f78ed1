package main

import "github.com/spf13/cobra"

func newPolicies(g *Factory) *cobra.Command {
	return group(&cobra.Command{
		Use:   "policies",
		Short: "Check a file of named policies",
	},
		newPoliciesCheck(g),
	)
}
