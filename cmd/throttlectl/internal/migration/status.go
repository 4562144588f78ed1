// Package migration has the command that prints how a migration between backends stands.
package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/endpoint"
)

const (
	defaultVar = "sluice_migration"
	maxBody    = 1 << 20
	minWatch   = 100 * time.Millisecond
)

const help = `Print how a migration stands in a running application, as it publishes it with package expvar: the flag's
percentage, both sides, and what was decided by which.

  DECISIONS   made by this side
  HANDOVERS   keys whose counts were carried from one side to the other
  REDIRECTED  calls that found their key on the other side, and went there
  BOUNDED     decisions made without the counts of the other side, which was unreachable
  SHADOW      verdicts of the side that doesn't decide: AGREED; DENIED what was allowed; ALLOWED what was denied;
              differed in what is REMAINING; FAILED to give one; DROPPED, not asked, under pressure

All numbers are counts since the application started. The exit code is 1 if a side isn't reachable. With --watch, errors
go to stderr and the watch goes on until interrupted, with exit code 0.`

type options struct {
	*cli.Factory
	url, name string
	redacted  string // the URL without secrets
	watch     time.Duration
}

// New makes the migrate command.
func New(f *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "migrate",
		Short: "Look at a migration from one backend to another",
	},
		newStatus(f),
	)
}

func newStatus(f *cli.Factory) *cobra.Command {
	o := &options{Factory: f}
	cmd := &cobra.Command{
		Use:   "status --url URL",
		Short: "Print how a migration stands in a running application",
		Long:  help,
		Args:  cli.Operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(cmd); err != nil {
				return cli.Usage(err)
			}
			if o.watch > 0 {
				return o.watchStatus(cmd.Context())
			}
			m, err := o.fetch(cmd.Context())
			if err != nil {
				return err
			}
			if err := o.Print(status{migration: m}); err != nil {
				return err
			}
			return m.unreachable()
		},
	}
	cmd.Flags().StringVar(&o.url, "url", "", "`address` of the application's variables: http://host:port/debug/vars")
	cmd.Flags().StringVar(&o.name, "name", defaultVar, "name of the variable")
	cmd.Flags().DurationVar(&o.watch, "watch", 0, "print again after this time, at least 100ms, until interrupted")
	return cmd
}

func (o *options) validate(cmd *cobra.Command) error {
	u, err := endpoint.Parse(o.url, "http://host:port/debug/vars")
	switch {
	case err != nil:
		return err
	case o.name == "":
		return errors.New("--name is empty")
	case cmd.Flags().Changed("watch") && o.watch < minWatch:
		return fmt.Errorf("--watch = %v: must be at least %v", o.watch, minWatch)
	}
	o.redacted = endpoint.Redacted(u)
	return nil
}

// watchStatus prints every o.watch until interrupted.
func (o *options) watchStatus(ctx context.Context) error {
	tick := time.NewTicker(o.watch)
	defer tick.Stop()
	for {
		m, err := o.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			o.PrintError(err)
		default:
			if err := o.Print(status{time.Now(), m}); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *options) fetch(ctx context.Context) (*migration, error) {
	body, err := endpoint.Get(ctx, o.url, o.redacted, o.Timeout, maxBody)
	if err != nil {
		return nil, err
	}
	m, err := parseMigration(body, o.name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.redacted, err)
	}
	return m, nil
}
