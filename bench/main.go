// Command bench runs the same work through Sluice and other rate limiters, side by side against one redis-server,
// which it starts and ends, and prints what each decision costs; then limiters that count in this process; then HTTP
// middlewares; then consistent-hash rings, once with the processor's caches to themselves and once beside other work; and
// last how Sluice stands against its targets. The best of the other limiters comes first.
//
//	go run .          # about ten minutes, on a machine that does nothing else
//	go run . -quick   # the order of things, in less than two
//	go run . -peers sluice,redis_rate -svg pictures -json report.json
//	go run . -soak 10m # only the attack, for long: exits with 1 if this process holds more and more
//
// Every table has a reference, whose ratio is 1.00x. All peers have the same limits, keys and number of connections, and
// take turns in short slices, in another order each round; the figures are medians over the rounds, and spread is half
// the range of the first column's. "Redis us" is the server's processor time for a decision, "client us" this process's;
// "commands" counts those that scripts call, too, but those that several decisions share once; "bytes/key" is the memory
// of all that one key makes the server store.
//
// Leases and the local view have rows with few keys. A batch is a thousandth of a million, and what fetching it costs is
// in the first table; in the second it is so large that what is compared are decisions made in this process.
//
// Ratios say something, absolute figures only what the machine is like. Parts of what one run printed:
//
//	64 callers, one limit, uniform keys, allowed
//	                  decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice               166309  3.41x     16%     367     860      3.61  0.21x       5.03    2.68      1.08        104     100%
//	  redis_rate            48734  1.00x     22%    1258    2501      17.2  1.00x       16.4    22.0      4.00        104     100%
//	  github                65928  1.35x     19%     929    2145      11.5  0.67x       14.7    17.0      3.00        144     100%
//	  incr-rueidis         192274  3.95x     19%     299     965      3.46  0.20x       5.50    1.00      1.00         72     100%
//
//	64 callers, one limit, 64 hot keys, allowed
//	                        decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice-lease              5765587   100x      5%    0.27    2.35      0.02  0.00x       0.32    0.03   0.00293        104     100%
//	  sluice                     191859  3.34x      9%     316     698      2.89  0.23x       4.32    2.69      1.08        104     100%
//	  redis_rate                  57431  1.00x     17%    1099    2169      12.8  1.00x       16.1    22.0      4.00        104     100%
//
//	attack: 200 callers, as 200 clients that have 10 a second each, ask 8 instances
//	                decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice-lease      5880217  79.6x      2%    0.32    0.58      0.00  0.00x       0.33    0.01   0.00064        104       0%
//	  sluice             262064  3.55x      5%     686    2134      2.19  0.19x       4.24    3.70      0.23        104       1%
//	  redis_rate          73917  1.00x      8%    2431    7122      11.3  1.00x       12.6    19.0      3.04        104       4%
//
//	in this process, parallel (GOMAXPROCS=2), one limit, 64 hot keys, denied
//	                        ns per decision  ratio  spread  allocs
//	  sluice-lease-backend              111  1.13x      4%    0.00
//	  sethvargo                        98.2  1.00x     10%    0.00
//
//	ring of 100 members, idle cache
//	              ns per lookup  ratio  spread  allocs  max/mean  moved/ideal
//	  sluice               11.9  0.07x     14%       0     1.059        0.996
//	  rendezvous            164  1.00x      5%       0     1.045        1.012
//
//	row                                                          measured    target  holds
//	  64 clients: Redis CPU, sluice to redis_rate                    0.84    <= 0.7     no
//	  bytes per key, sluice to redis_rate                               1      <= 1    yes
//	  leased, hot keys: Redis commands for a decision               0.003   <= 0.01    yes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE) // the last: make bench | head
	defer cancel()
	c, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	c.verbose = os.Stderr
	if err == nil {
		_, err = run(ctx, &c, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures everything and prints each table as soon as it is complete.
func run(ctx context.Context, c *config, out io.Writer) (report *Report, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	info, err := s.Info(ctx, "server")
	if err != nil {
		return nil, err
	}
	if c.soak > 0 {
		return nil, soak(ctx, c, s, attackPeers[0], c.soak, out)
	}
	report = newReport(c, info["redis_version"])
	if _, err := fmt.Fprintf(out, "%s\n\n", report); err != nil {
		return nil, err
	}

	all := make(callers, 256)
	for _, row := range c.rows {
		result, err := runRow(ctx, c, s, all, row)
		if err != nil {
			return nil, err
		}
		report.Network = append(report.Network, result)
		if err := result.write(out); err != nil {
			return nil, err
		}
	}
	if report.Memory, err = runMemory(ctx, c, s); err != nil {
		return nil, err
	}
	if err := writeMemory(out, report.Memory, sethvargo); err != nil {
		return nil, err
	}
	if report.HTTP, err = runHTTP(c); err != nil {
		return nil, err
	}
	if err := writeMemory(out, report.HTTP, httpRate); err != nil {
		return nil, err
	}
	if report.Rings, err = runRings(c); err != nil {
		return nil, err
	}
	report.Targets = verdicts(report)
	if _, err := fmt.Fprintln(out); err != nil {
		return nil, err
	}
	if err := writeRings(out, report.Rings); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return nil, err
	}
	if err := writeVerdicts(out, report.Targets); err != nil {
		return nil, err
	}
	if c.json != "" {
		if err := report.writeJSON(c.json); err != nil {
			return nil, err
		}
	}
	if c.svg != "" {
		return report, writeCharts(c.svg, report)
	}
	return report, nil
}
