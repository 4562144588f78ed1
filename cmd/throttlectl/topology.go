package main

import "github.com/spf13/cobra"

func newTopology(g *Factory) *cobra.Command {
	return group(&cobra.Command{
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

// jsonFile completes the operand of a command that takes one.
func jsonFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"json"}, cobra.ShellCompDirectiveFilterFileExt
}
