// Package policies has the command that checks files of policies, and the flags by which other commands select a policy.
package policies

import (
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

func New(g *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "policies",
		Short: "Check a file of named policies",
	},
		newPoliciesCheck(g),
	)
}
