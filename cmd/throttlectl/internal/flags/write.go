package flags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/featureflag"
)

func newSet(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME PERCENT",
		Short: "Store a percentage, 0 to 100, for example 12.5 or 12.5%",
		Long: `Store a percentage, 0 to 100, for example 12.5 or 12.5%. A flag that isn't there is made. A killed flag stays
killed, and gets the percentage when it is revived.`,
		Args: cli.Operands("NAME", "PERCENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			percent, err := strconv.ParseFloat(strings.TrimSuffix(args[1], "%"), 64)
			if err != nil {
				return cli.Usage(fmt.Errorf("PERCENT = %q: must be a number from 0 to 100", args[1]))
			}
			return o.write(cmd, args[0], percent, func(ctx context.Context, s featureflag.Source) (featureflag.Value, error) {
				return featureflag.Set(ctx, s, args[0], percent)
			})
		},
	}
}

func newChange(o *options, name, short string,
	change func(context.Context, featureflag.Source, string) (featureflag.Value, error)) *cobra.Command {
	return &cobra.Command{
		Use:   name + " NAME",
		Short: short,
		Args:  cli.Operands("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.write(cmd, args[0], 0, func(ctx context.Context, s featureflag.Source) (featureflag.Value, error) {
				return change(ctx, s, args[0])
			})
		},
	}
}

// write changes a flag and prints it and its old value. An old value that can't be read is no obstacle: a broken flag must be
// killable.
func (o *options) write(cmd *cobra.Command, name string, percent float64, change func(context.Context, featureflag.Source) (featureflag.Value, error)) error {
	if err := validateFlag(name, percent); err != nil {
		return err
	}
	return o.withSource(cmd, func(ctx context.Context, source featureflag.Source) error {
		r := changed{Name: name}
		old, err := source.Load(ctx, name)
		switch {
		case err == nil:
			r.Old = &old
		case !errors.Is(err, featureflag.ErrNotFound) && !errors.Is(err, fs.ErrNotExist):
			r.OldError = err.Error()
		}
		if r.New, err = change(ctx, source); err != nil {
			return err
		}
		return o.Print(r)
	})
}

// changed is a flag before and after.
type changed struct {
	Name     string             `json:"name"`
	Old      *featureflag.Value `json:"old"`                 // null if there was none, or it can't be read
	OldError string             `json:"old_error,omitempty"` // why it couldn't be read; empty: there was none
	New      featureflag.Value  `json:"new"`
}

func (c changed) Text(w io.Writer) {
	old := "none"
	switch {
	case c.Old != nil:
		old = describe(*c.Old)
	case c.OldError != "":
		old = "unreadable"
	}
	fmt.Fprintf(w, "%s: %s -> %s\n", c.Name, old, describe(c.New))
}

func describe(v featureflag.Value) string {
	killed := ""
	if v.Killed {
		killed = "killed, "
	}
	return fmt.Sprintf("%v%% (%sversion %d)", v.Percent, killed, v.Version)
}
