package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const topHelp = `Show what running applications decide, as they serve it with insight.Handler: on a terminal as a page that is drawn
anew every --interval, until q or Ctrl-C; elsewhere a block each --interval, until interrupted. --once prints one of them, as
soon as --interval is over.

  throttlectl top --url http://127.0.0.1:8081/debug/sluice
  throttlectl top --url http://app-1:8081/debug/sluice --url http://app-2:8081/debug/sluice --sort denied
  throttlectl top --url http://127.0.0.1:8081/debug/sluice --once --json

Several --url are several processes, and summed. One that leads to another process each time, such as a load balancer's,
makes no sense here. Applications watch keys only with insight.Config.WatchedKeys.

  DENIED       the share of denials among the decisions
  SOURCES      who decided; fallback is the failure policy, without the backend
  GUARANTEES   how far decisions can be off
  SHADOW       what shadow policies would have decided of what was admitted
  DENIED MOST  the keys that are denied most, hashed unless the application's handler shows them in clear, with denials that
               fade by its half-life, and by how much they may be too high. Hashes of one key are the same in all processes
               only where StatsConfig.HashKey is

All but DENIED MOST is about the last interval; the first page, which has no rates, about the time since the processes
started. With --json there are also counts since they started. The exit code of --once is 1 if a process doesn't answer.
Without it, errors go to stderr or on the page, and it goes on.`

const (
	statsExample = "http://host:port/debug/sluice"
	defaultKeys  = 10
	mostKeys     = 1000 // that a handler serves
	maxStats     = 16 << 20
	minInterval  = 100 * time.Millisecond
)

// topOptions are the flags of top.
type topOptions struct {
	*globals
	urls     []string
	interval time.Duration
	once     bool
	sort     string
	keys     int
}

func newTop(g *globals) *cobra.Command {
	o := &topOptions{globals: g}
	cmd := &cobra.Command{
		Use:   "top --url URL",
		Short: "Show live what running applications decide",
		Long:  topHelp,
		Args:  operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := o.processes()
			if err != nil {
				return usage(err)
			}
			if t := terminalOf(cmd.InOrStdin(), cmd.OutOrStdout()); t != nil && !o.once && !o.json {
				return o.onTerminal(cmd.Context(), t, all)
			}
			return o.blocks(cmd, all)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.urls, "url", nil, "`address` of an application's statistics: "+statsExample+"; once for each process")
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time between looks, at least 100ms")
	flags.BoolVar(&o.once, "once", false, "print one block, and end")
	flags.StringVar(&o.sort, "sort", orderNames[0], "order of the policies: "+strings.Join(orderNames, ", "))
	flags.IntVar(&o.keys, "keys", defaultKeys, "`number` of the keys denied most, up to 1000")
	for _, name := range []string{"url", "interval", "keys"} {
		noFiles(cmd, name)
	}
	known := cobra.FixedCompletions(orderNames, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("sort", known); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

// processes reads the flags.
func (o *topOptions) processes() ([]*process, error) {
	var all []*process
	var errs []error
	for _, text := range o.urls {
		u, err := parseURL(text, statsExample)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p := &process{shown: redacted(u), url: withTop(u, o.keys)}
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
	if !slices.Contains(orderNames, o.sort) {
		errs = append(errs, fmt.Errorf("--sort = %q: must be one of %s", o.sort, strings.Join(orderNames, ", ")))
	}
	if o.keys < 0 || o.keys > mostKeys {
		errs = append(errs, fmt.Errorf("--keys = %d: must be from 0 to %d", o.keys, mostKeys))
	}
	return all, errors.Join(errs...)
}

// withTop asks an insight.Handler for a number of keys.
func withTop(u *url.URL, keys int) string {
	query := u.Query()
	query.Set("top", strconv.Itoa(keys))
	its := *u
	its.RawQuery = query.Encode()
	return its.String()
}

// look asks all processes at once, and sums up what they say.
func (o *topOptions) look(ctx context.Context, all []*process) *topView {
	each(all, func(p *process) error { p.look(ctx, o.timeout); return p.err })
	return newTopView(time.Now(), all, o.sort, o.keys)
}

// blocks prints a block each interval, the first one when it has rates.
func (o *topOptions) blocks(cmd *cobra.Command, all []*process) error {
	ctx := cmd.Context()
	first := o.look(ctx, all)
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
		v := o.look(ctx, all)
		if ctx.Err() != nil {
			return o.interrupted(ctx)
		}
		if v.answers > 0 {
			if n > 0 && !o.json {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			if err := o.print(cmd.OutOrStdout(), v); err != nil {
				return err
			}
		}
		err := v.err()
		if o.once {
			return err
		}
		if err != nil {
			complain(cmd.ErrOrStderr(), err)
		}
	}
}

// interrupted is how blocks ends then: only --once has something left to do.
func (o *topOptions) interrupted(ctx context.Context) error {
	if o.once {
		return ctx.Err()
	}
	return nil
}

// onTerminal shows the page until q is pressed, or ctx ends.
func (o *topOptions) onTerminal(ctx context.Context, t *terminal, all []*process) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	restore := t.keys(ctx, func(key byte) {
		if key == 'q' || key == 'Q' {
			quit()
		}
	})
	defer restore()
	return o.live(ctx, &screen{w: t.out, rows: t.rows}, all)
}

// live draws a page each interval until ctx ends.
func (o *topOptions) live(ctx context.Context, s *screen, all []*process) error {
	if err := s.open(); err != nil {
		return err
	}
	defer s.close()
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for {
		v := o.look(ctx, all)
		if ctx.Err() != nil {
			return nil
		}
		var page bytes.Buffer
		if err := o.print(&page, v); err != nil {
			return err
		}
		if err := s.draw(page.String()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
