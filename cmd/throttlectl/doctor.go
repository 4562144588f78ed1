package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const doctorHelp = `Examine every server of a topology, or those given by --redis, and print what is wrong with it, and what to do. It only
asks, and can do so with the rights that the applications need; log in as they do, for it also looks at those rights.

  reach        whether it answers
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

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	serverFlags
	groups, ignore  []string
	failOn          string
	maxLag, maxSkew time.Duration
}

func newDoctor(g *Factory) *cobra.Command {
	o := &doctorOptions{serverFlags: serverFlags{Factory: g}}
	cmd := &cobra.Command{
		Use:               "doctor",
		Short:             "Examine the servers: holes, eviction, replication, clocks, rights, ...",
		Long:              doctorHelp + serverHelp,
		Args:              operands(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			least, err := o.validate()
			if err != nil {
				return usage(err)
			}
			s, err := o.cluster(cmd.Context())
			if err != nil {
				return err
			}
			if err := o.knownGroups(s); err != nil {
				return usage(err)
			}
			d := o.examine(cmd.Context(), s)
			if err := cmd.Context().Err(); err != nil { // then servers seem away that are not
				return err
			}
			if err := o.print(d); err != nil {
				return err
			}
			return d.Findings.err(least)
		},
	}
	o.register(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&o.groups, "group", nil, "`name` of a group to examine, in place of all; may be repeated")
	flags.StringSliceVar(&o.ignore, "ignore", nil, "`checks` to leave out, such as version,acl")
	flags.StringVar(&o.failOn, "fail-on", warning.String(), "`severity` from which on the exit code is 3: info, warning, critical")
	flags.DurationVar(&o.maxLag, "max-lag", 15*time.Second, "how long a replica may not have heard of its primary, as router.Config.MaxLag")
	flags.DurationVar(&o.maxSkew, "max-skew", time.Second, "how far clocks may be apart")
	words := func(list []string) cobra.CompletionFunc {
		return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"group": o.groupNames, "ignore": words(checkNames), "fail-on": words(severities),
	} {
		if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic(err) // there is no such flag
		}
	}
	noFiles(cmd, "max-lag")
	noFiles(cmd, "max-skew")
	return cmd
}

func (o *doctorOptions) validate() (least severity, err error) {
	i := slices.Index(severities, o.failOn)
	switch {
	case i < 0:
		return 0, fmt.Errorf("--fail-on = %q: must be one of %s", o.failOn, strings.Join(severities, ", "))
	case o.maxLag <= 0:
		return 0, fmt.Errorf("--max-lag = %v: must be more than 0", o.maxLag)
	case o.maxSkew <= 0:
		return 0, fmt.Errorf("--max-skew = %v: must be more than 0", o.maxSkew)
	}
	for _, name := range o.ignore {
		if !slices.Contains(checkNames, name) {
			return 0, fmt.Errorf("--ignore = %q: must be of %s", name, strings.Join(checkNames, ", "))
		}
	}
	return severity(i), nil
}

// knownGroups refuses groups that the topology doesn't have: nothing would be examined, and nothing found.
func (o *doctorOptions) knownGroups(s *cluster) error {
	var names []string
	for _, g := range s.topology.Groups {
		names = append(names, g.Name)
	}
	for _, name := range o.groups {
		if !slices.Contains(names, name) {
			return fmt.Errorf("--group = %q: the topology has no such group", name)
		}
	}
	return nil
}

// diagnosis is what doctor says.
type diagnosis struct {
	Servers  []serverFacts `json:"servers"`
	Findings findings      `json:"findings"`
}

func (o *doctorOptions) examine(ctx context.Context, s *cluster) *diagnosis {
	wanted := func(group string) bool { return len(o.groups) == 0 || slices.Contains(o.groups, group) }
	members, f := s.members(ctx, wanted)
	all := askAll(members, func(m member) *serverReport { return examine(ctx, m, o.Timeout) })
	for _, e := range all {
		for _, one := range e.check(o.maxLag) {
			one.Group, one.Server = e.Group, e.Address
			f = append(f, one)
		}
	}
	f = append(f, checkReplicas(all)...)
	f = append(f, checkClocks(all, o.maxSkew)...)
	f = slices.DeleteFunc(f, func(one finding) bool { return slices.Contains(o.ignore, one.Check) })
	d := &diagnosis{Findings: f.sorted()}
	for _, e := range all {
		d.Servers = append(d.Servers, e.facts())
	}
	return d
}

// serverFacts are the figures of a server.
type serverFacts struct {
	Group      string   `json:"group,omitempty"`
	Server     string   `json:"server"`
	Role       string   `json:"role"` // its own word; of one that doesn't answer the topology's
	Reachable  bool     `json:"reachable"`
	Version    string   `json:"version,omitempty"`
	UsedMemory int64    `json:"used_memory,omitempty"`
	MaxMemory  int64    `json:"max_memory,omitempty"` // 0: no limit
	Eviction   string   `json:"eviction,omitempty"`
	Clients    int64    `json:"clients,omitempty"`
	MaxClients int64    `json:"max_clients,omitempty"`
	Age        duration `json:"age,omitzero"`   // of a replica: since it has heard of its primary
	Clock      duration `json:"clock,omitzero"` // its clock against this host's
}

func (e *serverReport) facts() serverFacts {
	s := serverFacts{Group: e.Group, Server: e.Address, Role: e.Role, Reachable: e.err == nil}
	if e.err != nil || e.info == nil {
		return s
	}
	s.Role = rolePrimary
	if e.replica() {
		s.Role = roleReplica
	}
	if s.Version = e.info["valkey_version"]; s.Version == "" {
		s.Version = e.info["redis_version"]
	}
	s.UsedMemory, s.MaxMemory, s.Eviction = infoInt(e.info, "used_memory"), infoInt(e.info, "maxmemory"), e.info["maxmemory_policy"]
	s.Clients, s.MaxClients = infoInt(e.info, "connected_clients"), infoInt(e.info, "maxclients")
	s.Age, s.Clock = duration(e.age()), duration(e.offset.Round(time.Millisecond))
	return s
}

func (d *diagnosis) text(w io.Writer) {
	fmt.Fprint(w, "GROUP\tSERVER\tROLE\tREACHABLE\tVERSION\tMEMORY\tEVICTION\tCLIENTS\tAGE\tCLOCK\n")
	for _, s := range d.Servers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t", cell(s.Group), cell(s.Server), cell(s.Role), yesNo(s.Reachable), cell(s.Version))
		if s.Version == "" {
			fmt.Fprint(w, "-\t-\t-\t-\t-\n")
			continue
		}
		age := "-"
		if s.Role == roleReplica {
			age = s.Age.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\t%+.3fs\n", memory(s.UsedMemory, s.MaxMemory), cell(s.Eviction), s.Clients, s.MaxClients,
			age, time.Duration(s.Clock).Seconds())
	}
	fmt.Fprintln(w)
	if len(d.Findings) == 0 {
		fmt.Fprint(w, "nothing found\n")
	}
	d.Findings.text(w)
}

func memory(used, most int64) string {
	text := fmt.Sprintf("%.1fM", float64(used)/(1<<20))
	if most > 0 {
		text += fmt.Sprintf("/%.1fM", float64(most)/(1<<20))
	}
	return text
}
