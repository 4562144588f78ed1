// Package doctor examines servers and finds what is wrong with them.
package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

const help = `Examine every server of a topology, or those given by --redis, and print what is wrong, the worst first, where, and what to do.
It changes nothing, and needs only the rights of the applications; log in as they do, for it also looks at those rights.

  reach        whether it answers
  writes       whether it takes writes now, by a SET that changes nothing
  version      whether it is new enough, and has holes that let scripts do what they should not
  memory       whether it forgets counts when it is full, and how full it is
  replication  of replicas: whether they hear of their primary, and how far they are behind
  role         whether it is what the topology says
  clock        whether it has the time of the others
  acl          whether the user in use may do what Sluice needs, and no more
  persistence  what a restart would lose, and whether saving works
  clients      whether there is room for connections
  sentinel     whether all of them answer, and agree
  cluster      whether all slots have a server

The exit code is 0 if there is nothing of --fail-on or worse, and 3 otherwise. A server that can't be reached is a finding.

`

type options struct {
	cluster.Flags
	groups, ignore  []string
	failOn          string
	maxLag, maxSkew time.Duration
}

// New makes the doctor command.
func New(f *cli.Factory) *cobra.Command {
	o := &options{Flags: cluster.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:               "doctor",
		Short:             "Examine the servers: holes, eviction, replication, clocks, rights, ...",
		Long:              help + cluster.ServerHelp,
		Args:              cli.Operands(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			least, err := o.validate()
			if err != nil {
				return cli.Usage(err)
			}
			c, err := o.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			if err := o.knownGroups(c); err != nil {
				return cli.Usage(err)
			}
			d := o.examine(cmd.Context(), c)
			if err := cmd.Context().Err(); err != nil { // else servers would seem unreachable
				return err
			}
			if err := o.Print(d); err != nil {
				return err
			}
			return d.Findings.Err(least)
		},
	}
	o.Register(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&o.groups, "group", nil, "`name` of a group to examine, in place of all; may be repeated")
	flags.StringSliceVar(&o.ignore, "ignore", nil, "`checks` to leave out, such as version,acl")
	flags.StringVar(&o.failOn, "fail-on", finding.Warning.String(), "`severity` from which on the exit code is 3: info, warning, critical")
	flags.DurationVar(&o.maxLag, "max-lag", 15*time.Second, "how long a replica may not have heard of its primary, as router.Config.MaxLag")
	flags.DurationVar(&o.maxSkew, "max-skew", time.Second, "how far clocks may be apart")
	words := func(list []string) cobra.CompletionFunc {
		return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"group": o.CompleteGroups, "ignore": words(checkNames), "fail-on": words(finding.Severities),
	} {
		if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic(err) // there is no such flag
		}
	}
	cli.NoFiles(cmd, "max-lag")
	cli.NoFiles(cmd, "max-skew")
	return cmd
}

func (o *options) validate() (least finding.Severity, err error) {
	if err := cli.OneOf("fail-on", o.failOn, finding.Severities); err != nil {
		return 0, err
	}
	switch {
	case o.maxLag <= 0:
		return 0, fmt.Errorf("--max-lag = %v: must be more than 0", o.maxLag)
	case o.maxSkew <= 0:
		return 0, fmt.Errorf("--max-skew = %v: must be more than 0", o.maxSkew)
	}
	for _, name := range o.ignore {
		if err := cli.OneOf("ignore", name, checkNames); err != nil {
			return 0, err
		}
	}
	return finding.Severity(slices.Index(finding.Severities, o.failOn)), nil
}

// knownGroups refuses groups that the topology doesn't have: nothing would be examined.
func (o *options) knownGroups(c *cluster.Cluster) error {
	var names []string
	for _, g := range c.Topology.Groups {
		names = append(names, g.Name)
	}
	for _, name := range o.groups {
		if !slices.Contains(names, name) {
			return cli.WithGuess(fmt.Errorf("--group = %q: the topology has no such group", name), name, names)
		}
	}
	return nil
}

// diagnosis is the result of doctor.
type diagnosis struct {
	Servers  []serverFacts `json:"servers"`
	Findings finding.List  `json:"findings"`
}

func (o *options) examine(ctx context.Context, c *cluster.Cluster) *diagnosis {
	wanted := func(group string) bool { return len(o.groups) == 0 || slices.Contains(o.groups, group) }
	members, f := c.Members(ctx, wanted)
	all := cluster.Parallel(members, func(m cluster.Member) *serverReport { return examine(ctx, m, o.Timeout) })
	for _, e := range all {
		for _, one := range e.check(o.maxLag) {
			one.Group, one.Server = e.Group, e.Address
			f = append(f, one)
		}
	}
	f = append(f, checkReplicas(all)...)
	f = append(f, checkClocks(all, o.maxSkew)...)
	f = slices.DeleteFunc(f, func(one finding.Finding) bool { return slices.Contains(o.ignore, one.Check) })
	d := &diagnosis{Findings: f.Sorted()}
	for _, e := range all {
		d.Servers = append(d.Servers, e.facts())
	}
	return d
}

// serverFacts are the figures of a server.
type serverFacts struct {
	Group      string       `json:"group,omitempty"`
	Server     string       `json:"server"`
	Role       string       `json:"role"` // as the server says; as the topology says if it is unreachable
	Reachable  bool         `json:"reachable"`
	Version    string       `json:"version,omitempty"`
	UsedMemory int64        `json:"used_memory,omitempty"`
	MaxMemory  int64        `json:"max_memory,omitempty"` // 0: no limit
	Eviction   string       `json:"eviction,omitempty"`
	Clients    int64        `json:"clients,omitempty"`
	MaxClients int64        `json:"max_clients,omitempty"`
	Age        cli.Duration `json:"age,omitzero"`   // since a replica has heard of its primary
	Clock      cli.Duration `json:"clock,omitzero"` // its clock against this host's
}

func (e *serverReport) facts() serverFacts {
	s := serverFacts{Group: e.Group, Server: e.Address, Role: e.Role, Reachable: e.err == nil}
	if e.err != nil || e.info == nil {
		return s
	}
	s.Role = cluster.RolePrimary
	if e.replica() {
		s.Role = cluster.RoleReplica
	}
	if s.Version = e.info["valkey_version"]; s.Version == "" {
		s.Version = e.info["redis_version"]
	}
	s.UsedMemory, s.MaxMemory, s.Eviction = infoInt(e.info, "used_memory"), infoInt(e.info, "maxmemory"), e.info["maxmemory_policy"]
	s.Clients, s.MaxClients = infoInt(e.info, "connected_clients"), infoInt(e.info, "maxclients")
	s.Age, s.Clock = cli.Duration(e.age()), cli.Duration(e.offset.Round(time.Millisecond))
	return s
}

func (d *diagnosis) Text(w io.Writer) {
	fmt.Fprint(w, "GROUP\tSERVER\tROLE\tREACHABLE\tVERSION\tMEMORY\tEVICTION\tCLIENTS\tAGE\tCLOCK\n")
	for _, s := range d.Servers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t", cli.Cell(s.Group), cli.Cell(s.Server), cli.Cell(s.Role), cli.YesNo(s.Reachable), cli.Cell(s.Version))
		if s.Version == "" {
			fmt.Fprint(w, "-\t-\t-\t-\t-\n")
			continue
		}
		age := "-"
		if s.Role == cluster.RoleReplica {
			age = s.Age.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\t%+.3fs\n", memory(s.UsedMemory, s.MaxMemory), cli.Cell(s.Eviction), s.Clients, s.MaxClients,
			age, time.Duration(s.Clock).Seconds())
	}
	fmt.Fprintln(w)
	if len(d.Findings) == 0 {
		fmt.Fprint(w, "nothing found\n")
	}
	d.Findings.Text(w)
}

func memory(used, most int64) string {
	text := fmt.Sprintf("%.1fM", float64(used)/(1<<20))
	if most > 0 {
		text += fmt.Sprintf("/%.1fM", float64(most)/(1<<20))
	}
	return text
}
