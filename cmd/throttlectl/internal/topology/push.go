package topology

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/router"
)

const pushHelp = `Publish a topology: store it at the primaries of all its groups, and of those of the topology that is in force. Running
processes take it over from there within about ten seconds. Keys that change their owner are handed over from then on
(throttlectl reshard plan says what moves).

The push is refused, and nothing is published anywhere, if a primary can't be reached (see --partial), if another topology of the
same epoch or one of a larger epoch is in force, if the file is not valid, or if it doesn't name what is in force among its
"previous". A topology that differs in addresses, signature or "previous" alone is another topology, too: what is published under
an epoch stays as it is. To push the same file again does no harm.

What is published is what the file says, with its signature if it has one (throttlectl topology sign). Processes that have
TopologyKeys take over no other; without keys they take over what leads to servers that they know, or that are allowed by
AllowedAddresses.

Change the file that processes start with, too: one that starts with an old file finds the new topology on the servers,
as long as they remember it.`

type pushOptions struct {
	cluster.Flags
	dry, partial bool
}

func newPush(f *cli.Factory) *cobra.Command {
	o := &pushOptions{Flags: cluster.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:               "push FILE",
		Short:             "Publish a topology, so that running processes take it over",
		Long:              pushHelp,
		Args:              cli.Operands("FILE"),
		ValidArgsFunction: cli.DocumentFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Topology = args[0]
			c, err := o.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			p, err := o.push(cmd.Context(), c)
			if p == nil {
				return err
			}
			return errors.Join(o.Print(p), err)
		},
	}
	o.RegisterLogin(cmd)
	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "check only, and publish nothing")
	cmd.Flags().BoolVar(&o.partial, "partial", false, "publish it where that is possible; processes bring it to the others later")
	return cmd
}

// push publishes the file. If it is refused there is no report.
func (o *pushOptions) push(ctx context.Context, c *cluster.Cluster) (*pushResult, error) {
	file := c.Topology
	if file.Epoch == 0 {
		return nil, errors.New("the file has epoch 0, which is for a topology that is never changed: number it from 1 on")
	}
	if err := file.CheckHistory(); err != nil {
		return nil, fmt.Errorf("refused, and nothing was published: %w", err)
	}
	s := readState(ctx, c)
	defer s.publishers.Close()
	before := s.before
	if err := errors.Join(o.checkMayPublish(file, before), checkContinues(file, s)); err != nil {
		return nil, err
	}
	p := &pushResult{Epoch: file.Epoch, Digest: file.Digest(), DryRun: o.dry}
	var errs []error
	after := slices.Clone(before)
	if !o.dry {
		after = cluster.Parallel(s.publishers, func(p *cluster.Publisher) cluster.Published { return p.Publish(ctx, file) })
	}
	for i, a := range after {
		if o.dry && a.Err == nil {
			a.Epoch = file.Epoch
		}
		p.Nodes = append(p.Nodes, pushedNode{a.Group, a.Node, before[i].Epoch, a.Epoch, errorText(a.Err)})
		switch {
		case a.Err != nil:
			errs = append(errs, fmt.Errorf("group %s: %w", a.Group, a.Err))
		case !o.dry && (a.Epoch != file.Epoch || a.Digest != file.Digest() || describeDifference(a.Text, file) != ""):
			errs = append(errs, fmt.Errorf("group %s: another process has published epoch %d meanwhile", a.Group, a.Epoch))
		}
	}
	return p, errors.Join(errs...)
}

// checkMayPublish refuses a push because of what is published.
func (o *pushOptions) checkMayPublish(file router.Topology, before []cluster.Published) error {
	var errs []error
	reached := 0
	for _, p := range before {
		switch {
		case p.Err != nil && !o.partial:
			errs = append(errs, fmt.Errorf("group %s: %w (--partial leaves it out)", p.Group, p.Err))
		case p.Err != nil:
		case p.Epoch == file.Epoch && p.Digest == file.Digest(): // pushed already, or keys have the same owners
			if other := describeDifference(p.Text, file); other != "" {
				errs = append(errs, fmt.Errorf(`group %s: epoch %d is published with %s. To publish the file, write it as epoch %d with epoch %d as "previous"`,
					p.Group, p.Epoch, other, p.Epoch+1, p.Epoch))
			}
		case p.Epoch == file.Epoch:
			errs = append(errs, fmt.Errorf(`group %s: another topology of epoch %d is in force: write epoch %d, with that as "previous"%s`,
				p.Group, p.Epoch, p.Epoch+1, cluster.DescribeChange(p.Text, file)))
		case p.Epoch > file.Epoch:
			errs = append(errs, fmt.Errorf("group %s: epoch %d is in force, above %d: to take a change back, publish another "+
				"with a larger epoch. If processes reject what is there, throttlectl topology withdraw removes it",
				p.Group, p.Epoch, file.Epoch))
		}
		if there, err := router.ParseTopology([]byte(p.Text)); err == nil && len(there.Signature) > 0 && len(file.Signature) == 0 {
			errs = append(errs, fmt.Errorf("group %s: epoch %d is signed, and the file is not: throttlectl topology sign", p.Group, p.Epoch))
		}
		if p.Err == nil {
			reached++
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("refused, and nothing was published:\n%w", err)
	}
	if reached == 0 {
		return errors.New("refused, and nothing was published: no primary can be reached")
	}
	return nil
}

// pushResult is what was published where.
type pushResult struct {
	Epoch  uint64       `json:"epoch"`
	Digest string       `json:"digest"`
	DryRun bool         `json:"dry_run,omitempty"`
	Nodes  []pushedNode `json:"nodes"`
}

type pushedNode struct {
	Group  string `json:"group"`
	Node   string `json:"node"`
	Before uint64 `json:"before"` // epochs; 0 for none
	After  uint64 `json:"after"`
	Error  string `json:"error,omitempty"`
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (p *pushResult) Text(w io.Writer) {
	what := "published"
	if p.DryRun {
		what = "dry run: would be published"
	}
	fmt.Fprintf(w, "epoch %d, digest %s: %s\n\n", p.Epoch, p.Digest, what)
	fmt.Fprint(w, "GROUP\tNODE\tBEFORE\tAFTER\tERROR\n")
	for _, n := range p.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Group, cli.Cell(n.Node), cluster.EpochWord(n.Before), cluster.EpochWord(n.After), cli.Cell(n.Error))
	}
}
