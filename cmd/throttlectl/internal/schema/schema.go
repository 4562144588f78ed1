// Package schema has the command that prints the JSON Schemas of files.
package schema

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/schemas"
)

const help = `Print the JSON Schema (draft 2020-12) of a file of policies or of a topology, with which editors complete and check these files:

  throttlectl schema policies > policies.schema.json

The files name it in a member "$schema", or in YAML in a first line "# yaml-language-server: $schema=policies.schema.json".
A schema doesn't find every mistake: policies check and topology check do.`

// New makes the schema command.
func New(f *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a file",
		Long:  help,
	},
		newPrint(f, "policies", "Print the JSON Schema of a file of policies", schemas.Policies()),
		newPrint(f, "topology", "Print the JSON Schema of a topology", schemas.Topology()),
	)
}

func newPrint(f *cli.Factory, name, short, text string) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Long:  help,
		Args:  cli.Operands(),
		RunE:  func(*cobra.Command, []string) error { return f.Print(schema(text)) },
	}
}

type schema string

func (s schema) Text(w io.Writer) { _, _ = io.WriteString(w, string(s)) }

func (s schema) MarshalJSON() ([]byte, error) { return json.RawMessage(s), nil }
