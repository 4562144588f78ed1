// Package cli is what all commands of throttlectl share: how they are made, how they print results and errors, and the exit
// codes. A command is a function that takes a Factory and returns a cobra.Command.
package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/settings"
)

// Streams are where a command reads and writes.
type Streams struct {
	In          io.Reader
	Out, ErrOut io.Writer

	Getenv func(string) string // as os.Getenv; nil if there is no environment
}

// Factory is what every command is made with: the streams, and the flags that all commands have.
type Factory struct {
	Streams
	JSON     bool
	Timeout  time.Duration
	Color    string // one of Colors
	Verbose  bool
	Settings settings.Source
}

// ApplySettings gives cmd the values of settings that its command line leaves out.
func (f *Factory) ApplySettings(cmd *cobra.Command) error {
	f.Settings.Given = f.Settings.Given || cmd.Flags().Changed("config")
	err := f.Settings.Apply(cmd)
	if unknown, ok := errors.AsType[*settings.UnknownError](err); ok {
		return WithGuess(err, unknown.Name, unknown.Known)
	}
	return err
}

// DefaultTimeout is the default of --timeout.
const DefaultTimeout = 5 * time.Second

// Group makes cmd the parent of commands. Without one of them it is a usage error, which cobra would call a success.
func Group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, c := range commands {
			names = append(names, c.Name())
		}
		want := fmt.Sprintf("want one of %s (see %s --help)", strings.Join(names, ", "), cmd.CommandPath())
		if len(args) == 0 {
			return fmt.Errorf("no command: %s", want)
		}
		if guess := didYouMean(args[0], "", names); guess != "" {
			want = fmt.Sprintf("%s (see %s --help)", guess, cmd.CommandPath())
		}
		return fmt.Errorf("unknown command %q: %s", args[0], want)
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // never runs: Args refuses everything
	return cmd
}

// Operands names the arguments that a command takes, all of them required.
func Operands(names ...string) cobra.PositionalArgs {
	want := "no arguments"
	if len(names) > 0 {
		want = strings.Join(names, " ")
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return fmt.Errorf("%d arguments: want %s (see %s --help)", len(args), want, cmd.CommandPath())
		}
		return nil
	}
}

// Print writes a result to Out, in one call, so that a concurrent reader sees whole lines.
func (f *Factory) Print(r result) error { return f.PrintTo(f.Out, r) }

// PrintTo writes a result as Print does.
func (f *Factory) PrintTo(w io.Writer, r result) error {
	var b bytes.Buffer
	if f.JSON {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return err
		}
		escape(&b)
	} else {
		table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		r.Text(table)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, render(b.String(), !f.JSON && f.Colored(w)))
	return err
}
