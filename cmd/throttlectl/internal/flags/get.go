package flags

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/featureflag"
)

func newGet(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Print what is stored: percentage, version, killed",
		Args:  cli.Operands("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if err := validateFlag(name, 0); err != nil {
				return err
			}
			return o.withSource(cmd, func(ctx context.Context, source featureflag.Source) error {
				v, err := source.Load(ctx, name)
				if err != nil {
					return fmt.Errorf("flag %q: %w", name, err)
				}
				return o.Print(storedFlag{name, v})
			})
		},
	}
}

// storedFlag is a stored flag.
type storedFlag struct {
	Name string `json:"name"`
	featureflag.Value
}

func (f storedFlag) Text(w io.Writer) {
	fmt.Fprint(w, "NAME\tPERCENT\tVERSION\tKILLED\n")
	fmt.Fprintf(w, "%s\t%v\t%d\t%s\n", f.Name, f.Percent, f.Version, cli.YesNo(f.Killed))
}
