package inspect

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/router"
)

const ownerHelp = `Print the group that owns a key by a topology file, and the nodes of that group. No server is asked: it is the file that
says so, whether or not it is in force and whether or not its servers are alive. PREVIOUS is the owner by the topology
before, if the file still names it and it was another one: from there the key brings its counts.`

// NewOwner makes the owner command.
func NewOwner(f *cli.Factory) *cobra.Command {
	o := &cluster.Flags{Factory: f}
	cmd := &cobra.Command{
		Use:   "owner KEY...",
		Short: "Print the group and the nodes that own a key",
		Long:  ownerHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("0 arguments: want KEY... (see %s --help)", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, keys []string) error {
			t, err := o.LoadTopology()
			if err != nil {
				return err
			}
			all, err := owners(t, keys)
			if err != nil {
				return err
			}
			if !o.JSON {
				return o.Print(all)
			}
			for _, one := range all {
				if err := o.Print(one); err != nil {
					return err
				}
			}
			return nil
		},
	}
	o.RegisterTopology(cmd)
	return cmd
}

func owners(t router.Topology, keys []string) (ownerList, error) {
	now, err := cluster.TopologyRing(t)
	if err != nil {
		return nil, err
	}
	before := now
	if t.Previous != nil {
		if before, err = cluster.TopologyRing(*t.Previous); err != nil {
			return nil, err
		}
	}
	byName := make(map[string]router.Group)
	for _, g := range t.Groups {
		byName[g.Name] = g
	}
	var all ownerList
	for _, key := range keys {
		o := owner{Key: key, Group: byName[now.Owner(key)]}
		if was := before.Owner(key); was != o.Group.Name {
			o.Previous = was
		}
		all = append(all, o)
	}
	return all, nil
}

// owner is the group that owns a key.
type owner struct {
	Key      string       `json:"key"`
	Group    router.Group `json:"group"`
	Previous string       `json:"previous,omitempty"`
}

func (o owner) Text(w io.Writer) { ownerList{o}.Text(w) }

type ownerList []owner

func (l ownerList) Text(w io.Writer) {
	fmt.Fprint(w, "KEY\tGROUP\tPREVIOUS\tSERVERS\n")
	for _, o := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cli.Cell(o.Key), o.Group.Name, cli.Cell(o.Previous), o.Group)
	}
}
