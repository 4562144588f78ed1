// Package top has the command that shows live what applications decide.
package top

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/endpoint"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

const help = `Show what running applications decide, as they serve it with insight.Handler: on a terminal as a page that is drawn
anew every --interval, until q or Ctrl-C; elsewhere a block each --interval, until interrupted. --once prints one of them, as
soon as --interval is over. On a terminal s and S change the order of the policies, and j, k, space and b scroll.

  throttlectl top --url http://127.0.0.1:8081/debug/sluice
  throttlectl top --url http://app-1:8081/debug/sluice --url http://app-2:8081/debug/sluice --sort denied
  throttlectl top --url http://127.0.0.1:8081/debug/sluice --once --json

Several --url are several processes, and summed. One that leads to another process each time, such as a load balancer's,
makes no sense here. Applications watch keys only with insight.Config.WatchedKeys.

  EXPOSED/S     admitted cost that is not exact and may have exceeded a limit
  TREND         decisions a second at the latest looks, on a terminal
  DENIED        the share of denials among the decisions
  SOURCES       who decided; fallback is the failure policy, without the backend
  GUARANTEES    how far decisions can be off
  DENIED MOST   the keys that are denied most, hashed unless the application's handler shows them in clear, with denials that
                fade by its half-life, and by how much they may be too high. Hashes of one key are the same in all processes
                only where insight.Config.HashKey is. A key that --names FILE has is shown by its name: the file is an object
                such as {"header:x-api-key:HASH": "Acme"} (throttlectl hash prints these). For hashed keys --hash-key-file
                is needed, too
  NEAR A LIMIT  keys that came near a limit whose window still runs, and what they had left then
  GROUP         the nodes of a router, as the processes see them that see the worst of them
  KEYS THAT MOVE, LEASES, FLAG, MIGRATION
                what a router, a lease, a flag and a migration have counted since the processes started
  SHADOW        what shadow policies would have decided of what was admitted

What an application doesn't give its handler is left out. Rates and shares are about the last interval; the first page, which
has no rates, is about the time since the processes started. With --json there are also counts since then. The exit code of
--once is 1 if a process doesn't answer. Without it, errors go to stderr or on the page, and it goes on.`

const (
	statsExample = "http://host:port/debug/sluice"
	defaultKeys  = 10
	mostKeys     = 1000 // the most that a handler serves
	maxStats     = 16 << 20
	minInterval  = 100 * time.Millisecond
)

type options struct {
	*cli.Factory
	urls     []string
	interval time.Duration
	once     bool
	sort     string
	keys     int

	namesFile, hashKeyFile string
	names                  map[string]string // by key or hash
}

// New makes the top command.
func New(f *cli.Factory) *cobra.Command {
	o := &options{Factory: f}
	cmd := &cobra.Command{
		Use:   "top --url URL",
		Short: "Show live what running applications decide",
		Long:  help,
		Args:  cli.Operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := o.processes()
			if err != nil {
				return cli.Usage(err)
			}
			if o.names, err = namesOf(o.namesFile, o.hashKeyFile); err != nil {
				return err
			}
			if t := terminal.TerminalOf(o.In, o.Out); t != nil && !o.once && !o.JSON {
				return o.onTerminal(cmd.Context(), t, all)
			}
			return o.blocks(cmd.Context(), all)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.urls, "url", nil, "`address` of an application's statistics: "+statsExample+"; once for each process")
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time between looks, at least 100ms")
	flags.BoolVar(&o.once, "once", false, "print one block, and end")
	flags.StringVar(&o.sort, "sort", orderNames[0], "order of the policies: "+strings.Join(orderNames, ", "))
	flags.IntVar(&o.keys, "keys", defaultKeys, "`number` of the keys denied most, up to 1000")
	flags.StringVar(&o.namesFile, "names", "", "`file` of an object, in JSON or YAML, that has names for keys; see DENIED MOST")
	flags.StringVar(&o.hashKeyFile, "hash-key-file", "", "`file` with the HashKey of the applications, by which --names finds hashed keys")
	for _, name := range []string{"url", "interval", "keys"} {
		cli.NoFiles(cmd, name)
	}
	known := cobra.FixedCompletions(orderNames, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("sort", known); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

// processes validates the flags, and returns the processes to poll.
func (o *options) processes() ([]*process, error) {
	var all []*process
	var errs []error
	for _, text := range o.urls {
		u, err := endpoint.Parse(text, statsExample)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p := &process{shown: endpoint.Redacted(u), url: withTop(u, o.keys)}
		if slices.ContainsFunc(all, func(other *process) bool { return other.url == p.url }) {
			errs = append(errs, fmt.Errorf("--url: %s is given twice", p.shown))
		}
		all = append(all, p)
	}
	if len(o.urls) == 0 {
		errs = append(errs, errors.New("--url is needed: "+statsExample))
	}
	if o.interval < minInterval {
		errs = append(errs, fmt.Errorf("--interval = %v: must be at least %v", o.interval, minInterval))
	}
	if err := cli.OneOf("sort", o.sort, orderNames); err != nil {
		errs = append(errs, err)
	}
	if o.hashKeyFile != "" && o.namesFile == "" {
		errs = append(errs, errors.New("--hash-key-file is for --names"))
	}
	if o.keys < 0 || o.keys > mostKeys {
		errs = append(errs, fmt.Errorf("--keys = %d: must be from 0 to %d", o.keys, mostKeys))
	}
	return all, errors.Join(errs...)
}

// withTop is the URL with which insight.Handler serves a number of keys.
func withTop(u *url.URL, keys int) string {
	query := u.Query()
	query.Set("top", strconv.Itoa(keys))
	its := *u
	its.RawQuery = query.Encode()
	return its.String()
}

// poll polls all processes at once, and sums up.
func (o *options) poll(ctx context.Context, all []*process) *view {
	var polls sync.WaitGroup
	for _, p := range all {
		polls.Go(func() { p.poll(ctx, o.Timeout) })
	}
	polls.Wait()
	v := newView(time.Now(), all, o.keys)
	v.name(o.names)
	return v
}

// blocks prints a block each interval, the first after one: before that there are no rates.
func (o *options) blocks(ctx context.Context, all []*process) error {
	first := o.poll(ctx, all)
	if o.once && first.answers == 0 {
		return first.err()
	}
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return o.interrupted(ctx)
		}
		v := o.poll(ctx, all)
		if ctx.Err() != nil {
			return o.interrupted(ctx)
		}
		v.sort(o.sort)
		if v.answers > 0 {
			if n > 0 && !o.JSON {
				fmt.Fprintln(o.Out)
			}
			if err := o.Print(v); err != nil {
				return err
			}
		}
		err := v.err()
		if o.once {
			return err
		}
		if err != nil {
			o.PrintError(err)
		}
	}
}

// interrupted is the error of blocks then: only with --once it hasn't done its work.
func (o *options) interrupted(ctx context.Context) error {
	if o.once {
		return ctx.Err()
	}
	return nil
}
