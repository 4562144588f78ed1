package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const rootHelp = `throttlectl is the operator's tool for applications that use Sluice.

Results go to stdout, as text or, with --json, as one JSON object a line. Errors go to stderr.

Exit codes:
  0  ok
  1  failure: a server is away, there is no such flag, nothing is stored of a key, a side isn't reachable, a load was
     interrupted, ...
  2  usage: the command line is wrong, and nothing was done
  3  found: the command has done its work, and what it looked for is there: doctor, topology check, policies check and
     reshard plan something that should not be, load more admitted than the limits say`

// Streams are where a command reads and writes.
type Streams struct {
	In          io.Reader
	Out, ErrOut io.Writer
}

// Factory is what every command is made with: the streams, and the flags that all commands have.
type Factory struct {
	Streams
	JSON    bool
	Timeout time.Duration
}

const defaultTimeout = 5 * time.Second

// newRoot returns the tree of commands. A command is made by a function that takes a Factory and returns a cobra.Command
// with RunE, and with Args made by operands. An error that RunE returns is a failure unless usage made it; an error before
// RunE is a usage error. No other command may have a PersistentPreRunE: cobra runs only the innermost one.
func newRoot(s Streams) *cobra.Command {
	g := &Factory{Streams: s}
	root := group(&cobra.Command{
		Use:           "throttlectl",
		Short:         "The operator's tool for applications that use Sluice",
		Long:          rootHelp,
		SilenceUsage:  true,
		SilenceErrors: true, // run reports them
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if g.Timeout <= 0 {
				return fmt.Errorf("--timeout = %v: must be more than 0", g.Timeout)
			}
			return nil
		},
	},
		newFlag(g),
		newMigrate(g),
		newOwner(g),
		newPeek(g),
		newUsage(g),
		newReset(g),
		newRing(g),
		newReshard(g),
		newTopology(g),
		newTop(g),
		newPolicies(g),
		newDoctor(g),
		newSimulate(g),
		newLoad(g),
	)
	root.PersistentFlags().BoolVar(&g.JSON, "json", false, "print JSON, one object a line")
	root.PersistentFlags().DurationVar(&g.Timeout, "timeout", defaultTimeout, "bound for each question to a server")
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.ErrOut)
	// Groups are runnable only in order to refuse: see group.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(),
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	markFailures(root)
	return root
}

// group makes cmd the parent of commands. By itself it is a usage error: cobra would print the help and call it a
// success, also for a command that doesn't exist.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
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
		return fmt.Errorf("unknown command %q: %s", args[0], want)
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // never runs: Args refuses everything
	return cmd
}

// operands names the arguments that a command takes, all of them required.
func operands(names ...string) cobra.PositionalArgs {
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
