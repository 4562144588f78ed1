// Package root is the throttlectl program: the tree of all commands.
package root

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/doctor"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/flags"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/hash"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/inspect"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/load"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/migration"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/schema"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/settings"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/simulate"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/top"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/topology"
)

const rootHelp = `throttlectl is the operator's tool for applications that use Sluice.

Results go to stdout, as text or, with --json, as one JSON object a line. Errors go to stderr.

Exit codes:
  0  ok
  1  failure: a server is unreachable, there is no such flag, nothing is stored of a key, a load was interrupted, ...
  2  usage: the command line is wrong, and nothing was done
  3  found: doctor, topology check, policies check or reshard plan has found a problem, or load has seen more admitted than
     the limits allow. The command has done its work`

// New returns the tree of commands. A command is made by a function that takes a cli.Factory and returns a cobra.Command with
// RunE, and with Args made by cli.Operands. An error of RunE is a failure unless cli.Usage made it; an error before RunE is a
// usage error. Only the root may have a PersistentPreRunE: cobra runs only the innermost one.
func New(s cli.Streams) *cobra.Command {
	return newRoot(&cli.Factory{Streams: s})
}

func newRoot(f *cli.Factory) *cobra.Command {
	f.Settings = settings.Source{
		Getenv: f.Getenv, PasswordVariable: cluster.PasswordEnv, PasswordFlags: []string{cluster.PasswordFile},
	}
	root := cli.Group(&cobra.Command{
		Use:           "throttlectl",
		Short:         "The operator's tool for applications that use Sluice",
		Long:          rootHelp,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true, // Run reports them
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return prepare(f, cmd)
		},
	},
		flags.New(f),
		migration.New(f),
		inspect.NewOwner(f),
		inspect.NewPeek(f),
		inspect.NewUsage(f),
		inspect.NewReset(f),
		inspect.NewGrant(f),
		inspect.NewRing(f),
		topology.NewReshard(f),
		topology.New(f),
		top.New(f),
		policies.New(f),
		schema.New(f),
		hash.New(f),
		doctor.New(f),
		simulate.New(f),
		load.New(f),
		newConfig(f),
	)
	flags := root.PersistentFlags()
	flags.BoolVar(&f.JSON, "json", false, "print JSON, one object a line")
	flags.DurationVar(&f.Timeout, "timeout", cli.DefaultTimeout, "bound for each question to a server")
	flags.StringVar(&f.Color, "color", cli.Colors[0], "`when` to use colors: "+strings.Join(cli.Colors, ", "))
	flags.StringVar(&f.Settings.File, "config", "", "`file` of settings; none if empty: see throttlectl config --help")
	flags.BoolVar(&f.Verbose, "verbose", false, "print to stderr what the client of Redis logs")
	settings.Bind(flags, settings.Text, "timeout")
	settings.Bind(flags, settings.Text, "color")
	_ = root.MarkPersistentFlagFilename("config", "json")
	if err := root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(cli.Colors, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.ErrOut)
	// Groups are runnable only to refuse: see cli.Group.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(),
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	cli.MarkFailures(root)
	return root
}

// version is the module's version, or (devel) for a program that was built from a checkout.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// prepare completes the flags of a command from its settings, and checks those that all commands have.
func prepare(f *cli.Factory, cmd *cobra.Command) error {
	if err := f.ApplySettings(cmd); err != nil {
		return err
	}
	if f.Timeout <= 0 {
		return fmt.Errorf("--timeout = %v: must be more than 0", f.Timeout)
	}
	if err := cli.OneOf("color", f.Color, cli.Colors); err != nil {
		return err
	}
	if f.Verbose {
		redisbackend.LogTo(slog.New(slog.NewTextHandler(f.ErrOut, nil)))
	}
	return nil
}

// Run runs the program and returns its exit code.
func Run(ctx context.Context, s cli.Streams, args []string) int {
	f := &cli.Factory{Streams: s}
	root := newRoot(f)
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	err := root.ExecuteContext(ctx)
	if err != nil {
		f.PrintError(err)
	}
	return cli.ExitCode(err)
}
