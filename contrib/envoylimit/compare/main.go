// Command compare measures sluice-envoy and github.com/envoyproxy/ratelimit side by side: the same files, the same Redis, the same
// load, in turn, round after round. It prints the table of the module's README.
//
//	cd contrib/envoylimit && go run ./compare
//
// It builds both servers, the reference from its module, and starts them and a redis-server on loopback. -reference FILE takes a
// reference that is built already, -only NAME measures one contender.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// referenceVersion is what the table was measured with.
const referenceVersion = "v1.4.1-0.20260122083618-3fb702589d36"

// options are what the command line says.
type options struct {
	reference, only string
	rounds          int
	slice           time.Duration
	callers         int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.reference, "reference", "", "the `file` of a reference that is built already")
	flag.StringVar(&o.only, "only", "", "measure the contenders with this in their `name` only")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds; the medians are shown")
	flag.DurationVar(&o.slice, "slice", 2*time.Second, "the time of each measurement")
	flag.IntVar(&o.callers, "callers", 64, "concurrent callers, on 8 connections")
	flag.Parse()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1)
	}
}

// contender is a server with its settings.
type contender struct {
	name   string
	file   string // its executable
	limits string
	env    []string
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "sluice-compare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := contenders(ctx, &o, dir)
	if err != nil {
		return err
	}
	db, err := startRedis(ctx, dir)
	if err != nil {
		return err
	}
	defer db.stop()
	var results []*result
	for _, c := range all {
		for _, w := range workloads {
			results = append(results, &result{contender: c.name, workload: w.name})
		}
	}
	for round := range o.rounds {
		for i := range all { // another one is first in each round
			c := all[(i+round)%len(all)]
			if err := measureAll(ctx, c, db, &o, dir, results); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
	}
	print(out, results, &o)
	return nil
}

func contenders(ctx context.Context, o *options, dir string) (all []contender, err error) {
	own, ref := filepath.Join(dir, "sluice-envoy"), o.reference
	wanted := func(name string) bool { return strings.Contains(name, o.only) }
	if err := build(ctx, "", own, "github.com/sluice-go/sluice/contrib/envoylimit/cmd/sluice-envoy"); err != nil {
		return nil, err
	}
	if ref == "" && (wanted("envoyproxy/ratelimit") || wanted("envoyproxy/ratelimit, stop when over")) {
		ref = filepath.Join(dir, "ratelimit")
		if err := buildReference(ctx, dir, ref); err != nil {
			return nil, err
		}
	}
	for _, c := range []contender{
		{name: "sluice-envoy", file: own, limits: limits},
		{name: "sluice-envoy, leases", file: own, limits: strings.Replace(limits, "descriptors:", "sluice: {lease: {processes: 1}}\ndescriptors:", 1)},
		{name: "envoyproxy/ratelimit", file: ref, limits: limits},
		{name: "envoyproxy/ratelimit, stop when over", file: ref, limits: limits, env: []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}},
	} {
		if wanted(c.name) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no contender has that name")
	}
	return all, nil
}

func build(ctx context.Context, dir, file, pkg string) error {
	return command(ctx, dir, nil, "go", "build", "-o", file, pkg)
}

// buildReference builds the reference in a module of its own, beside no workspace.
func buildReference(ctx context.Context, dir, file string) error {
	module := filepath.Join(dir, "module")
	if err := os.Mkdir(module, 0o700); err != nil {
		return err
	}
	env := []string{"GOWORK=off", "GOFLAGS=-mod=mod"}
	const pkg = "github.com/envoyproxy/ratelimit/src/service_cmd"
	return errors.Join(
		command(ctx, module, env, "go", "mod", "init", "reference"),
		command(ctx, module, env, "go", "get", pkg+"@"+referenceVersion),
		command(ctx, module, env, "go", "build", "-o", file, pkg),
	)
}

func command(ctx context.Context, dir string, env []string, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// print prints the medians.
func print(out io.Writer, results []*result, o *options) {
	fmt.Fprintf(out, "%d callers on 8 connections, medians of %d rounds of %s\n\n", o.callers, o.rounds, o.slice)
	fmt.Fprintln(out, "| load | server | requests/s | p50 | p99 | Redis commands sent/request | Redis CPU/request | service CPU/request | admitted above the limit | charged by 100 denied requests |")
	fmt.Fprintln(out, "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, w := range workloads {
		for _, r := range results {
			if r.workload != w.name {
				continue
			}
			over, denied := "", ""
			if w.most > 0 {
				over, denied = fmt.Sprint(slices.Max(r.over)), fmt.Sprint(median(r.denied))
			}
			fmt.Fprintf(out, "| %s | %s | %.0f | %.2f ms | %.2f ms | %.3f | %.1f us | %.1f us | %s | %s |\n", r.workload, r.contender,
				median(r.rate), median(r.p50), median(r.p99), median(r.commands), median(r.redisCPU), median(r.serviceCPU), over, denied)
		}
	}
}

func median[T cmp.Ordered](all []T) T {
	var zero T
	if len(all) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
