package inspect

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
)

const peekHelp = `Print what each limit of a policy has counted of a key, and charge nothing. The primary of the key's group is asked, by
the topology that running processes use: that of the file, or a newer one that is published at its servers.

  USED       what is charged and not given back; above the quota where the Max was lowered
  REMAINING  what can still pass now
  RESET      when the full quota is back; - where nothing is used

Without limits, peek prints what is stored of the key under the policy that --policy names, or else under all of them: what
each window has counted and what was given back in it. ~ and ? before a policy's name are the counts of a shadow. Max and
burst are not stored, so what remains isn't known, nor what is used of a token bucket.

  throttlectl peek alice --redis redis://10.0.0.1:6379

Where nothing is stored of the key under the policy and its limits, peek says so, with what is stored in their place, and the
exit code is 1. So it is where the server has handed the key over, to another group or to the other side of a migration.

To find the policies of a key, the names that the key's server has stored are searched with SCAN, in steps, for --timeout
and 10,000,000 names at most; of a Redis Cluster on all primaries. That needs the right +scan, which applications don't have:
log in as an operator. Named policies and limits need no search.

`

// NewPeek makes the peek command.
func NewPeek(f *cli.Factory) *cobra.Command {
	o := &keyOptions{Flags: cluster.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:   "peek KEY",
		Short: "Print what is counted of a key, limit by limit",
		Long:  peekHelp + policies.Help + "\n\n" + cluster.ServerHelp,
		Args:  cli.Operands("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Selector.File == "" && len(o.Limits) == 0 {
				return o.peekStored(cmd.Context(), args[0], cmd.Flags().Changed("policy"))
			}
			return o.withStored(cmd.Context(), args[0], false, func(k *keyCounts, req backend.Request, stored backend.Snapshot) error {
				return o.Print(keyState{req.Key, req.Policy.Name, k.group, k.epoch, limitStates(stored, req)})
			})
		},
	}
	o.register(cmd)
	return cmd
}

// keyState is what is counted of a key.
type keyState struct {
	Key    string       `json:"key"`
	Policy string       `json:"policy"`
	Group  string       `json:"group,omitempty"`
	Epoch  uint64       `json:"epoch,omitempty"`
	Limits []limitState `json:"limits"`
}

func (s keyState) Text(w io.Writer) {
	fmt.Fprintf(w, "KEY\tPOLICY\tGROUP\n%s\t%s\t%s\n\n", cli.Cell(s.Key), cli.Cell(s.Policy), cli.Cell(s.Group))
	fmt.Fprint(w, "LIMIT\tUSED\tREMAINING\tQUOTA\tRESET\n")
	for _, l := range s.Limits {
		if l.Limit.IsCounter() {
			fmt.Fprintf(w, "%s\t%d\t-\t-\t%s\n", l.Limit, l.Used, l.Reset)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", l.Limit, l.Used, l.Remaining, l.Quota, l.Reset)
	}
}
