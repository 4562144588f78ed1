package flags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/featureflag"
)

const watchHelp = `Print a line for what is stored, and one for every change, until interrupted:

  time, percentage that applies, stored version, reason: split (by percentage) or disabled (killed)

Errors go to stderr, and the watch goes on: a flag that isn't there may come, an unreachable server may return. Changes
in Redis are seen at once, changes in a file at the next refresh. Changes in quick succession may be told as one.`

func newWatch(o *options) *cobra.Command {
	var refresh time.Duration
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Print every change until interrupted",
		Long:  watchHelp,
		Args:  cli.Operands("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.watch(cmd, args[0], refresh)
		},
	}
	cmd.Flags().DurationVar(&refresh, "refresh", time.Second, "time between two looks, at least 1ms")
	return cmd
}

func (o *options) watch(cmd *cobra.Command, name string, refresh time.Duration) error {
	if refresh == 0 { // 0 is the default of package featureflag
		return cli.Usage(errors.New("--refresh = 0s: must be at least 1ms"))
	}
	source, done, err := o.source(cmd)
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	flag, err := featureflag.New(featureflag.Config{
		Name: name, Source: source, Refresh: refresh, Timeout: o.Timeout,
		OnChange: func(s featureflag.State) {
			if err := o.Print(newEvent(time.Now(), s)); err != nil {
				stop(err) // Out is closed
			}
		},
		OnError: func(err error) { o.PrintError(err) },
	})
	if err != nil {
		return cli.Usage(err) // no I/O yet: the configuration is wrong
	}
	<-ctx.Done()
	_ = flag.Close()
	if cmd.Context().Err() != nil {
		return nil // interrupted
	}
	return context.Cause(ctx)
}

// event is a change.
type event struct {
	Time    time.Time          `json:"time"`
	Name    string             `json:"name"`
	Percent float64            `json:"percent"` // that applies: 0 if killed
	Version uint64             `json:"version"` // the stored one, as in get
	Reason  featureflag.Reason `json:"reason"`
}

func newEvent(now time.Time, s featureflag.State) event {
	return event{Time: now, Name: s.Name, Percent: s.Percent, Version: s.Generation, Reason: s.Reason}
}

func (s event) Text(w io.Writer) {
	fmt.Fprintf(w, "%s %v%% version %d %s\n", s.Time.Format(cli.TimeLayout), s.Percent, s.Version, s.Reason)
}
