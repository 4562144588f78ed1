package cli

import (
	"github.com/spf13/cobra"
)

// NoFiles keeps a shell from offering files as the value of a flag.
func NoFiles(cmd *cobra.Command, flag string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions); err != nil {
		panic(err) // there is no such flag
	}
}

// DocumentExtensions are how names of files of policies and topologies end.
var DocumentExtensions = []string{"json", "yaml", "yml"}

// DocumentFile completes a single operand with files of policies and topologies.
func DocumentFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return DocumentExtensions, cobra.ShellCompDirectiveFilterFileExt
}
