package inspect

import (
	"fmt"
	"io"
	"strings"

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
	byName := make(map[string]*router.Group)
	for i := range t.Groups {
		byName[t.Groups[i].Name] = &t.Groups[i]
	}
	var all ownerList
	for _, key := range keys {
		g := byName[now.Owner(key)]
		o := owner{
			Key: key, Group: g.Name, Primary: g.Primary, Replicas: g.Replicas,
			Sentinels: g.Sentinels, Master: g.Master, Cluster: g.Cluster,
		}
		if was := before.Owner(key); was != g.Name {
			o.Previous = was
		}
		all = append(all, o)
	}
	return all, nil
}

// owner is the group that owns a key.
type owner struct {
	Key       string   `json:"key"`
	Group     string   `json:"group"`
	Previous  string   `json:"previous,omitempty"`
	Primary   string   `json:"primary,omitempty"`
	Replicas  []string `json:"replicas,omitempty"`
	Sentinels []string `json:"sentinels,omitempty"`
	Master    string   `json:"master,omitempty"`
	Cluster   []string `json:"cluster,omitempty"`
}

func (o owner) Text(w io.Writer) { ownerList{o}.Text(w) }

type ownerList []owner

func (l ownerList) Text(w io.Writer) {
	fmt.Fprint(w, "KEY\tGROUP\tPREVIOUS\tPRIMARY\tREPLICAS\n")
	for _, o := range l {
		primary, replicas := o.Primary, strings.Join(o.Replicas, " ")
		switch {
		case len(o.Sentinels) > 0:
			primary = fmt.Sprintf("master %s of sentinels %s", o.Master, strings.Join(o.Sentinels, " "))
		case len(o.Cluster) > 0:
			primary = "cluster " + strings.Join(o.Cluster, " ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cli.Cell(o.Key), o.Group, cli.Cell(o.Previous), primary, cli.Cell(replicas))
	}
}
