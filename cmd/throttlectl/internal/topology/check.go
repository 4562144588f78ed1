package topology

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/router"
)

const checkHelp = `Validate a topology file, reach every server that it names, and compare the topology that the primaries hold with the
file, also in addresses, signature and "previous". With --topology-key signatures are verified. Nothing is changed.
throttlectl doctor looks at the servers themselves.

  PUBLISHED  the epoch of the topology that running processes have published at the primary, which is the one in force; - for
             none. They publish it within seconds`

func newCheck(f *cli.Factory) *cobra.Command {
	o := &cluster.Flags{Factory: f}
	cmd := &cobra.Command{
		Use:               "check FILE",
		Short:             "Validate a topology, reach every server, compare it with what is in force",
		Long:              checkHelp,
		Args:              cli.Operands("FILE"),
		ValidArgsFunction: cli.DocumentFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Topology = args[0]
			c, err := o.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			check := checkTopology(cmd.Context(), c)
			if err := cmd.Context().Err(); err != nil { // else servers would seem unreachable
				return err
			}
			if err := o.Print(check); err != nil {
				return err
			}
			return check.Findings.Err(finding.Warning)
		},
	}
	o.RegisterLogin(cmd)
	return cmd
}

// checkResult is the result of topology check.
type checkResult struct {
	Epoch    uint64         `json:"epoch"`
	Digest   string         `json:"digest"`
	Servers  []memberStatus `json:"servers"`
	Findings finding.List   `json:"findings"`
}

type memberStatus struct {
	Group     string `json:"group"`
	Server    string `json:"server"`
	Role      string `json:"role"`
	Reachable bool   `json:"reachable"`
	Published uint64 `json:"published,omitempty"` // the epoch, of primaries only
	Digest    string `json:"digest,omitempty"`
	Error     string `json:"error,omitempty"`
}

// checkTopology reaches every server, each within --timeout.
func checkTopology(ctx context.Context, c *cluster.Cluster) *checkResult {
	check := &checkResult{Epoch: c.Topology.Epoch, Digest: c.Topology.Digest()}
	all, f := c.Members(ctx, func(string) bool { return true })
	published := c.ReadPublished(ctx)
	reached := cluster.Parallel(all, func(m cluster.Member) error {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout) // of its own: a server that hangs delays no other
		defer cancel()
		return m.Reach(ctx)
	})
	for i, m := range all {
		status := memberStatus{Group: m.Group, Server: m.Address, Role: m.Role, Reachable: reached[i] == nil}
		if err := reached[i]; err != nil {
			status.Error = err.Error()
			one := finding.Finding{
				Severity: finding.Warning, Check: "reach", Group: m.Group, Server: m.Address, What: "can't be reached", Detail: err.Error(),
				Do: "See whether it runs, and whether the address and the credentials are right.",
			}
			if m.Role == cluster.RolePrimary {
				one.Severity = finding.Critical
			}
			f = append(f, one)
		}
		for _, p := range published {
			if m.Role == cluster.RolePrimary && p.Group == m.Group && p.Err == nil {
				status.Published, status.Digest = p.Epoch, p.Digest
			}
		}
		check.Servers = append(check.Servers, status)
	}
	check.Findings = append(f, checkPublished(c.Topology, published, c.Trust.TopologyKeys)...).Sorted()
	return check
}

// checkPublished compares what is published with the file, and verifies the signatures of both if there are keys.
func checkPublished(file router.Topology, published []cluster.Published, keys []ed25519.PublicKey) (f finding.List) {
	var newest uint64
	for _, p := range published {
		newest = max(newest, p.Epoch)
	}
	if file.Epoch == 0 && newest == 0 {
		f.Add(finding.Info, "published", "the file has epoch 0: other processes can't learn of it, "+
			"and it can't be changed while they run", "Number topologies from 1 on.")
		return f
	}
	if err := file.CheckHistory(); err != nil {
		f.Add(finding.Critical, "history", "processes can't start with the file: "+err.Error(), "")
	}
	if len(keys) > 0 {
		f = append(f, checkSignatures(file, published, keys)...)
	}
	for _, p := range published {
		one := finding.Finding{Check: "published", Group: p.Group, Server: p.Node}
		switch {
		case p.Err != nil:
			one.Severity, one.What = finding.Warning, "its announcement can't be read: "+p.Err.Error()
		case p.Epoch == file.Epoch && p.Digest != file.Digest():
			one.Severity = finding.Critical
			one.What = fmt.Sprintf("another topology of epoch %d is in force%s", p.Epoch, cluster.DescribeChange(p.Text, file))
			one.Do = fmt.Sprintf("Give the file epoch %d, with that one as \"previous\"; until then processes that have the file decide nothing.", p.Epoch+1)
		case p.Epoch > file.Epoch:
			one.Severity = finding.Warning
			one.What = fmt.Sprintf("epoch %d is in force, the file has %d", p.Epoch, file.Epoch)
			one.Do = "Use the newer file; processes that start with this one take the newer over."
		case p.Epoch < file.Epoch && newest == 0:
			one.Severity, one.What = finding.Info, "nothing is published: no process with a topology has been here, or the server has lost it"
		case p.Epoch < file.Epoch:
			one.Severity = finding.Warning
			one.What = fmt.Sprintf("the file's epoch %d is not in force here: it has %s", file.Epoch, cluster.EpochWord(p.Epoch))
			one.Do = "throttlectl topology push publishes it. Where it is in force elsewhere, processes bring it here within seconds."
		default:
			other := describeDifference(p.Text, file)
			if other == "" {
				continue
			}
			one.What = fmt.Sprintf("epoch %d is published with %s than the file has", p.Epoch, other)
			if other == "no signature" {
				one.What = fmt.Sprintf("epoch %d is published with no signature, and the file has one", p.Epoch)
			}
			if strings.HasSuffix(other, "signature") || strings.HasSuffix(other, "text") {
				one.Severity = finding.Warning
			}
			one.Do = fmt.Sprintf(`To publish the file, write it as epoch %d with epoch %d as "previous".`, p.Epoch+1, p.Epoch)
		}
		f = append(f, one)
	}
	return f
}

// checkSignatures finds what processes with these TopologyKeys would refuse.
func checkSignatures(file router.Topology, published []cluster.Published, keys []ed25519.PublicKey) (f finding.List) {
	if err := file.Verify(keys...); err != nil && len(file.Signature) > 0 {
		f.Add(finding.Critical, "signature", "processes with these keys can't start with the file: "+err.Error(), "throttlectl topology sign")
	}
	for _, p := range published {
		t, err := router.ParseTopology([]byte(p.Text))
		if err == nil {
			err = t.Verify(keys...)
		}
		if p.Text != "" && err != nil {
			f = append(f, finding.Finding{
				Severity: finding.Critical, Check: "signature", Group: p.Group, Server: p.Node,
				What: fmt.Sprintf("processes with these keys don't take over epoch %d: %v", p.Epoch, err),
				Do:   "Sign the next epoch and push it, or take away what should not be there: throttlectl topology withdraw.",
			})
		}
	}
	return f
}

func (check *checkResult) Text(w io.Writer) {
	fmt.Fprintf(w, "epoch %d, digest %s\n\n", check.Epoch, check.Digest)
	fmt.Fprint(w, "GROUP\tSERVER\tROLE\tREACHABLE\tPUBLISHED\n")
	for _, m := range check.Servers {
		epoch := "-"
		if m.Published > 0 {
			epoch = strings.TrimSpace(fmt.Sprintf("%d %s", m.Published, m.Digest))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Group, cli.Cell(m.Server), cli.Cell(m.Role), cli.YesNo(m.Reachable), cli.Cell(epoch))
	}
	if len(check.Findings) > 0 {
		fmt.Fprintln(w)
		check.Findings.Text(w)
	}
}
