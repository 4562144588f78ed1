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

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluice-go/sluice/internal/redisserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
	flag.IntVar(&o.rounds, "rounds", 9, "rounds; the medians are shown")
	flag.DurationVar(&o.slice, "slice", time.Second, "the time of each measurement")
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

	service *child
	conns   []*grpc.ClientConn
	clients []pb.RateLimitServiceClient
}

// start starts the server, and connections to it.
func (c *contender) start(ctx context.Context, db *database, dir string) (err error) {
	if c.service, err = startService(ctx, c, db, dir); err != nil {
		return err
	}
	for range 8 {
		conn, err := grpc.NewClient(c.service.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		c.conns, c.clients = append(c.conns, conn), append(c.clients, pb.NewRateLimitServiceClient(conn))
	}
	return nil
}

func (c *contender) stop() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.service.stop()
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
	redis, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.Stop()) }()
	db := &database{redis}
	for i := range all {
		if err := all[i].start(ctx, db, dir); err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		defer all[i].stop()
	}
	results := make(map[string]*result)
	for round := range o.rounds {
		for _, w := range workloads {
			for i := range all { // one right after the other, and another one first in each round
				c := &all[(i+round)%len(all)]
				r := results[w.name+c.name]
				if r == nil {
					r = &result{}
					results[w.name+c.name] = r
				}
				if err := measure(ctx, c, db, &o, &w, round, r); err != nil {
					return fmt.Errorf("%s: %s: %w", c.name, w.name, err)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
	}
	print(out, all, results, &o)
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
	for _, args := range [][]string{{"mod", "init", "reference"}, {"get", pkg + "@" + referenceVersion}, {"build", "-o", file, pkg}} {
		if err := command(ctx, module, env, "go", args...); err != nil {
			return err
		}
	}
	return nil
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
func print(out io.Writer, all []contender, results map[string]*result, o *options) {
	fmt.Fprintf(out, "%d callers on 8 connections, medians of %d rounds of %s\n\n", o.callers, o.rounds, o.slice)
	fmt.Fprintln(out, "| load | server | requests/s | p50 | p99 | Redis commands sent/request | Redis CPU/request | service CPU/request | admitted above the limit | charged by 100 denied requests |")
	fmt.Fprintln(out, "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, w := range workloads {
		for i := range all {
			r := results[w.name+all[i].name]
			over, denied := "", ""
			if w.most > 0 {
				over, denied = fmt.Sprint(slices.Max(r.over)), fmt.Sprint(median(r.denied))
			}
			fmt.Fprintf(out, "| %s | %s | %.0f | %.1f ms | %.1f ms | %.2f | %.1f us | %.0f us | %s | %s |\n", w.name, all[i].name,
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
