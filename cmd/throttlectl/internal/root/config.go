package root

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/settings"
)

const configHelp = `Show the settings of the environment and of the file, and what they are now.

A flag on the command line weighs more than its variable in the environment, and that more than the file. The file is that of
--config, or else of SLUICE_CONFIG, or else $XDG_CONFIG_HOME/throttlectl/config.json, ~/.config/throttlectl/config.json by
default. Its members have the names of the flags:

  {
    "topology": "groups.json",
    "user": "operator",
    "password-file": "/run/secrets/redis",
    "timeout": "10s"
  }

Paths are relative to the file. A list, of --redis or --allow-address, is an array there, and has spaces between its items in the
environment. A URL in the file has no password. A command ignores settings that it has no flag for; a
member that no command has is an error. --topology and --redis are alternatives: where a source has one, the other is ignored in
sources of less weight. load takes both from its command line only.`

// newConfig makes the config command.
func newConfig(f *cli.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "config",
		Short:             "Show the settings of the environment and of the file",
		Long:              configHelp,
		Args:              cli.Operands(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := settings.All(cmd.Root())
			values, err := f.Settings.Values(all)
			if err != nil {
				return err
			}
			path, _ := f.Settings.Path()
			shown := configured{File: path}
			for _, flag := range all {
				one := setting{Name: flag.Name, Variable: settings.Variable(flag.Name)}
				for _, v := range values {
					if v.Name == flag.Name {
						one.Value, one.From = v.Redacted(), v.From
					}
				}
				shown.Settings = append(shown.Settings, one)
			}
			return f.Print(shown)
		},
	}
}

type configured struct {
	File     string    `json:"file,omitempty"`
	Settings []setting `json:"settings"`
}

type setting struct {
	Name     string `json:"name"`
	Variable string `json:"variable"`
	Value    string `json:"value,omitempty"`
	From     string `json:"from,omitempty"`
}

func (c configured) Text(w io.Writer) {
	fmt.Fprintf(w, "file: %s\n\nSETTING\tVARIABLE\tVALUE\tFROM\n", cli.Cell(c.File))
	for _, s := range c.Settings {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, s.Variable, cli.Cell(s.Value), cli.Cell(s.From))
	}
}
