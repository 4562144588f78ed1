package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/limit"
)

const resetHelp = `Give a key its full quota back, under every limit of a policy, and print what was given back. What was charged before is
refunded rather than deleted, so that no process that remembers it can bring it back. Requests that come meanwhile are
counted as ever.

Where there is nothing to give back the exit code is 1, and nothing is changed; reset prints what is stored of the key in other
places, as peek does.

It asks for no confirmation: it changes one key that you name, and only gives back. --dry-run shows what it would give.

`

// NewReset makes the reset command.
func NewReset(f *cli.Factory) *cobra.Command {
	o := &keyOptions{Flags: cluster.Flags{Factory: f}}
	var dry bool
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Give a key its full quota back",
		Long:  resetHelp + policies.Help + "\n\n" + cluster.ServerHelp,
		Args:  cli.Operands("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withStored(cmd.Context(), args[0], !dry, func(k *keyCounts, req backend.Request, stored backend.Snapshot) error {
				r, err := k.reset(cmd.Context(), req, stored, dry)
				if err != nil {
					return err
				}
				return o.Print(r)
			})
		},
	}
	o.register(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "change nothing, and print what would be given back")
	return cmd
}

// reset gives back all that is used.
func (k *keyCounts) reset(ctx context.Context, req backend.Request, stored backend.Snapshot, dry bool) (keyReset, error) {
	return k.giveBack(ctx, req, stored, dry, limit.MaxCount, func() error { return k.Reset(ctx, req) })
}

// giveBack calls do, which gives back up to most of what is used. Others may charge meanwhile: what is printed as given back
// rests on what was used before.
func (k *keyCounts) giveBack(
	ctx context.Context, req backend.Request, stored backend.Snapshot, dry bool, most int64, do func() error,
) (keyReset, error) {
	r := keyReset{Key: req.Key, Policy: req.Policy.Name, Group: k.group, DryRun: dry}
	before := limitStates(stored, req)
	if !slices.ContainsFunc(before, func(l limitState) bool { return l.Used > 0 }) {
		return r, errors.New("nothing is used of this key under these limits: there is nothing to give back")
	}
	after := before
	if !dry {
		if err := do(); err != nil {
			return r, err
		}
		stored, err := k.Load(ctx, req)
		if err != nil {
			return r, fmt.Errorf("given back, but can't be read back: %w", err)
		}
		after = limitStates(stored, req)
	}
	for i, l := range before {
		r.Limits = append(r.Limits, limitReset{
			Limit: l.Limit, GivenBack: min(most, l.Used), Remaining: after[i].Remaining, Quota: l.Quota,
		})
	}
	return r, nil
}

// keyReset is what a reset or a grant has done.
type keyReset struct {
	Key    string       `json:"key"`
	Policy string       `json:"policy"`
	Group  string       `json:"group,omitempty"`
	DryRun bool         `json:"dry_run,omitempty"`
	Limits []limitReset `json:"limits"`
}

type limitReset struct {
	Limit     limit.Limit `json:"limit"`
	GivenBack int64       `json:"given_back"`
	Remaining int64       `json:"remaining"`
	Quota     int64       `json:"quota"`
}

func (r keyReset) Text(w io.Writer) {
	given := "GIVEN BACK"
	if r.DryRun {
		given = "WOULD GIVE BACK"
	}
	fmt.Fprintf(w, "KEY\tPOLICY\tGROUP\n%s\t%s\t%s\n\n", cli.Cell(r.Key), cli.Cell(r.Policy), cli.Cell(r.Group))
	fmt.Fprintf(w, "LIMIT\t%s\tREMAINING\tQUOTA\n", given)
	for _, l := range r.Limits {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", l.Limit, l.GivenBack, l.Remaining, l.Quota)
	}
}
