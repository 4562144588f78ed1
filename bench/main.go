// Command bench runs the same work through Sluice and other rate limiters, side by side against one redis-server,
// which it starts and ends, and prints what each decision costs; then limiters that count in this process; then
// consistent-hash rings; and last how Sluice stands against its targets.
//
//	go run .          # about ten minutes, on a machine that does nothing else
//	go run . -quick   # the order of things, in less than two
//	go run . -peers sluice,redis_rate -svg pictures -json report.json
//
// Every table has a reference, whose ratio is 1.00x. All peers have the same limits, keys and number of connections, and
// take turns in short slices, in another order each round; the figures are medians over the rounds, and spread is half
// the range of the first column's. "Redis us" is the server's processor time for a decision, "client us" this process's;
// "commands" counts those that scripts call, too; "bytes/key" is the memory of all that one key makes the server store.
// Ratios say something, absolute figures only what the machine is like. What it prints, in parts:
//
//	64 callers, one limit, uniform keys, allowed
//	                  decisions/s  ratio  spread  p50 us  p99 us  Redis us  ratio  client us  allocs  commands  bytes/key  allowed
//	  sluice                37590  0.97x     19%    1643    4722      19.4  1.55x       22.5    27.1      3.00        104     100%
//	  redis_rate            38783  1.00x     30%    1268    6111      12.5  1.00x       12.7    22.1      4.00        104     100%
//	  github                37488  0.97x     35%    1217    6779      9.13  0.73x       11.2    17.1      3.00        144     100%
//
//	in this process, parallel (GOMAXPROCS=2), one limit, allowed
//	                  ns per decision  ratio  spread  allocs
//	  sluice-backend              273  2.43x     20%    0.00
//	  sethvargo                   112  1.00x     12%    0.00
//
//	ring of 100 members
//	              ns per lookup  ratio  spread  allocs  max/mean  moved/ideal
//	  sluice               25.3  0.13x      5%       0     1.059        0.996
//	  rendezvous            193  1.00x      1%       0     1.045        1.012
//
//	row                                              measured   target  holds
//	  64 callers: Redis CPU, sluice to redis_rate        1.42  <= 0.25     no
//	  bytes per key, sluice to redis_rate                   1     <= 1    yes
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
	if report.Memory, err = runMemory(ctx, c); err != nil {
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
