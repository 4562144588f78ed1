package main

import "github.com/spf13/cobra"

func newTopology(g *globals) *cobra.Command {
	return group(&cobra.Command{
		Use:   "topology",
		Short: "Check and publish a topology",
	},
		newTopologyCheck(g),
		newTopologyPush(g),
	)
}

// jsonFile completes the operand of a command that takes one.
func jsonFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"json"}, cobra.ShellCompDirectiveFilterFileExt
}
