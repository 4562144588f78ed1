package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

const pushHelp = `Publish a topology: leave it on the primaries of all its groups, and of those of the topology that is in force, from where
running processes take it over within about ten seconds. Keys that change their owner are handed over from then on
(throttlectl reshard plan says what moves).

It is all or nothing as far as that goes: the push is refused, and nothing is left anywhere, if a primary can't be reached
(see --partial), if a topology of the same or a larger epoch is in force, or if the file is not valid. What is in force is
added as the file's "previous" where that doesn't name it, if the servers tell it: epoch 1 must stand in the file. --dry-run looks and leaves nothing.

Change the file that processes start with, too: one that starts with an old file finds the new topology on the servers,
as long as they remember it.`

// pushOptions are the flags of topology push.
type pushOptions struct {
	serverFlags
	dry, partial bool
}

func newTopologyPush(g *globals) *cobra.Command {
	o := &pushOptions{serverFlags: serverFlags{globals: g}}
	cmd := &cobra.Command{
		Use:               "push FILE",
		Short:             "Publish a topology, so that running processes take it over",
		Long:              pushHelp,
		Args:              operands("FILE"),
		ValidArgsFunction: jsonFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.topology = args[0]
			s, err := o.site()
			if err != nil {
				return err
			}
			p, err := o.push(cmd.Context(), s)
			if p == nil {
				return err
			}
			return errors.Join(o.print(cmd.OutOrStdout(), p), err)
		},
	}
	o.registerLogin(cmd)
	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "look, and leave nothing")
	cmd.Flags().BoolVar(&o.partial, "partial", false, "leave it where that is possible; processes bring it to the others later")
	return cmd
}

// push publishes the file. Where it was refused there is no report.
func (o *pushOptions) push(ctx context.Context, s *site) (*topologyPush, error) {
	file := s.topology
	if file.Epoch == 0 {
		return nil, errors.New("the file has epoch 0, which is for a topology that is never changed: number it from 1 on")
	}
	boards, done := s.boards(ctx, file.Groups)
	defer done()
	// First of all what is in force, with its text, for its groups are told, too.
	before := readBoards(ctx, boards, router.Topology{})
	force, err := newestOf(before)
	if err != nil {
		return nil, err
	}
	if gone := goneGroups(file, force); len(gone) > 0 {
		more, done := s.boards(ctx, gone)
		defer done()
		boards = append(boards, more...)
		before = append(before, readBoards(ctx, more, router.Topology{})...)
	}
	if err := errors.Join(o.refuse(file, before), continues(file, force, before)); err != nil {
		return nil, err
	}
	notice, err := noticeOf(file, force)
	if err != nil {
		return nil, err
	}
	p := &topologyPush{Epoch: file.Epoch, Digest: notice.Digest, DryRun: o.dry}
	var errs []error
	after := slices.Clone(before)
	for i := range boards {
		if o.dry && after[i].err == nil {
			after[i].Epoch = file.Epoch
		}
	}
	if !o.dry {
		after = each(boards, func(b *board) posted { return b.post(ctx, notice) })
	}
	for i := range boards {
		a := after[i]
		p.Nodes = append(p.Nodes, pushedNode{a.Group, a.Node, before[i].Epoch, a.Epoch, a.Error})
		switch {
		case a.err != nil:
			errs = append(errs, fmt.Errorf("group %s: %w", a.Group, a.err))
		case !o.dry && (a.Epoch != file.Epoch || a.Digest != notice.Digest):
			errs = append(errs, fmt.Errorf("group %s: somebody has published epoch %d meanwhile", a.Group, a.Epoch))
		}
	}
	return p, errors.Join(errs...)
}

// newestOf is the topology in force, nil if there is none that can be read: of epoch 1 only the digest is told.
func newestOf(all []posted) (*router.Topology, error) {
	i := -1
	for j, p := range all {
		if p.text != "" && (i < 0 || p.Epoch > all[i].Epoch) {
			i = j
		}
	}
	if i < 0 {
		return nil, nil
	}
	t, err := router.ParseTopology([]byte(all[i].text))
	if err != nil {
		return nil, fmt.Errorf("the topology of epoch %d on %s: %w", all[i].Epoch, all[i].Node, err)
	}
	return &t, nil
}

// goneGroups are those in force that the file no longer has.
func goneGroups(file router.Topology, force *router.Topology) []router.Group {
	before := force
	if before == nil {
		before = file.Previous
	}
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(before.Groups), func(g router.Group) bool {
		return slices.ContainsFunc(file.Groups, func(have router.Group) bool { return have.Name == g.Name })
	})
}

// refuse is why nothing may be left.
func (o *pushOptions) refuse(file router.Topology, before []posted) error {
	var errs []error
	reached := 0
	for _, p := range before {
		switch {
		case p.err != nil && !o.partial:
			errs = append(errs, fmt.Errorf("group %s: %w", p.Group, p.err))
		case p.err != nil:
		case p.Epoch == file.Epoch && p.Digest == file.Digest(): // pushed already
		case p.Epoch == file.Epoch:
			errs = append(errs, fmt.Errorf("group %s: another topology of epoch %d is in force: digest %s, the file's is %s",
				p.Group, p.Epoch, p.Digest, file.Digest()))
		case p.Epoch > file.Epoch:
			errs = append(errs, fmt.Errorf("group %s: epoch %d is in force, above %d: a change is taken back by another, "+
				"with a larger epoch",
				p.Group, p.Epoch, file.Epoch))
		}
		if p.err == nil {
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

// continues refuses a topology that doesn't come after what is in force: it must name that as its previous one, unless the
// servers tell its text. Of epoch 1 they tell the digest only.
func continues(file router.Topology, force *router.Topology, before []posted) error {
	var newest posted
	for _, p := range before {
		if p.Epoch > newest.Epoch {
			newest = p
		}
	}
	previous := file.Previous
	switch {
	case newest.Epoch == 0 || newest.Epoch >= file.Epoch:
		return nil
	case previous != nil && previous.Epoch == newest.Epoch && previous.Digest() != newest.Digest:
		return fmt.Errorf(`refused, and nothing was published: the file's "previous" is not the topology of epoch %d that is in force: `+
			"digest %s, there %s", newest.Epoch, previous.Digest(), newest.Digest)
	case force == nil && (previous == nil || previous.Epoch < newest.Epoch):
		return fmt.Errorf(`refused, and nothing was published: epoch %d is in force, and the file doesn't name it as "previous": `+
			"processes that start would not know where keys have their counts", newest.Epoch)
	}
	return nil
}

// noticeOf is what routers leave. The topology in force goes along as the previous one, as routers do it.
func noticeOf(file router.Topology, force *router.Topology) (backend.Notice, error) {
	if force != nil && force.Epoch == file.Epoch && file.Previous == nil { // the rest of a push that was partial
		file.Previous = force.Previous
	}
	if force != nil && force.Epoch < file.Epoch && (file.Previous == nil || file.Previous.Epoch < force.Epoch) {
		file.Previous = force
	}
	text, err := json.Marshal(file)
	return backend.Notice{Version: int64(file.Epoch), Digest: file.Digest(), Text: string(text)}, errors.Join(err, file.Validate())
}

// topologyPush is what was left where.
type topologyPush struct {
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

func (p *topologyPush) text(w io.Writer) {
	what := "published"
	if p.DryRun {
		what = "dry run: would be published"
	}
	fmt.Fprintf(w, "epoch %d, digest %s: %s\n\n", p.Epoch, p.Digest, what)
	fmt.Fprint(w, "GROUP\tNODE\tBEFORE\tAFTER\tERROR\n")
	for _, n := range p.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Group, cell(n.Node), epochWord(n.Before), epochWord(n.After), cell(n.Error))
	}
}
