// Command bench runs the same work through Sluice and other rate limiters, side by side against one redis-server,
// which it starts and ends, and prints what each decision costs; then limiters that count in this process; then
// consistent-hash rings; and last how Sluice stands against its targets.
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
// Ratios say something, absolute figures only what the machine is like. What -quick prints, in parts, here on a machine
// that had other things to do:
//
//	64 callers, one limit, uniform keys, allowed
//	                  decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice               103274  2.72x     16%     580    2011      4.12  0.31x       6.09    10.0      1.11        104     100%
//	  redis_rate            37942  1.00x      5%    1633    2564      13.3  1.00x       13.1    22.0      4.00        104     100%
//	  github                46112  1.22x      2%    1330    2328      9.64  0.73x       12.1    17.0      3.00        144     100%
//
//	64 callers, one limit, 64 hot keys, allowed
//	                        decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice-lease              2096068  51.9x      2%    0.40     774      0.03  0.00x       0.45    0.04   0.00323        104     100%
//	  sluice                     111337  2.76x      8%     545    1362      3.68  0.29x       5.28    10.1      1.11        104     100%
//	  redis_rate                  40350  1.00x      1%    1556    2327      12.7  1.00x       12.2    22.0      4.00        104     100%
//
//	attack: 200 callers, as 200 clients that have 10 a second each, ask 8 instances
//	                decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice-lease      1780722  44.2x      1%    0.46    0.89      0.03  0.00x       0.53    0.06   0.00487        104       0%
//	  sluice             100510  2.49x      5%    1852    5912      3.11  0.25x       6.85    11.6      0.33        104       3%
//	  redis_rate          40326  1.00x      2%    4489   10236      12.2  1.00x       12.5    19.0      3.09        104       9%
//
//	in this process, parallel (GOMAXPROCS=2), one limit, 64 hot keys, denied
//	                        ns per decision  ratio  spread  allocs
//	  sluice-lease-backend              176  1.87x      1%    0.00
//	  sethvargo                        94.2  1.00x      2%    0.00
//
//	ring of 100 members
//	              ns per lookup  ratio  spread  allocs  max/mean  moved/ideal
//	  sluice               12.3  0.07x      3%       0     1.059        0.996
//	  rendezvous            185  1.00x      2%       0     1.045        1.012
//
//	row                                                          measured    target  holds
//	  64 callers: Redis CPU, sluice to redis_rate                   0.311   <= 0.25     no
//	  bytes per key, sluice to redis_rate                               1      <= 1    yes
//	  leased, hot keys: Redis commands for a decision               0.003   <= 0.04    yes
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
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	defer func() { err = errors.Join(err, s.stop()) }()
	info, err := s.info(ctx, "server")
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
	if err := writeMemory(out, report.Memory); err != nil {
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
