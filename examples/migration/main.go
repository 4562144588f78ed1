// Command migration plays the whole release of moving a rate limiter from Memcached to sharded Redis, under load, and
// counts what was admitted over the limit: nothing.
//
//	go run ./examples/migration
//
// It starts its own servers, one Memcached and three groups of a Redis primary and a replica, and ends them. Two
// processes of an application, each with its own connections and its own view of a feature flag, serve 32 clients who
// ask for 200 keys, some far more often than they may. An operator raises the flag's percentage, takes it back and
// raises it again. Once nothing can be carried over any more, the application leaves Memcached behind.
//
// A line is printed as each step ends; ratios compare with the step before:
//
//	step Redis requests allowed denied  over shadow d/a/r handovers redirected bounded errors   p50 ratio   p99 ratio
//	   1    0%     5087    1864   3223     0        0/0/2       199          0       0      0  0.19     -  1.64     -
//	   2    1%     5119    1476   3643     0       1/1/12       198          0       0      0  0.17 x0.91  1.13 x0.69
//	   3   10%     5124    1393   3731     0     27/75/73       200         18       0      0  0.17 x1.00  1.62 x1.43
//	   4   50%     5129    1778   3351     0  115/133/348       200         56       0      0  0.22 x1.30  1.06 x0.66
//	   5  100%     5124    1084   4040     0            -       197        176       0      0  0.24 x1.08  0.83 x0.78
//	   6   10%     5120    1715   3405     0            -       200        227       0      0  0.16 x0.66  0.85 x1.03
//	   7  100%    17923    5222  12701     0            -       252        230       0      0  0.26 x1.63  1.03 x1.20
//	   8 alone     5159    1430   3729     0            -         0          0       0      0  0.24 x0.93  0.88 x0.86
//
// The exit code is 1 if anything was admitted over the limit, or any request met an error. To see what the carry-over is
// for, leave it out: -without-carry-over. While it runs, an operator can watch it: in cmd/throttlectl,
//
//	go run . migrate status --watch 1s --url http://127.0.0.1:PORT/debug/vars
//
// It needs redis-server and memcached on PATH, or servers that run already: -topology FILE -memcached host:port.
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
	"time"

	"github.com/sluice-go/sluice/limit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are what the command line says, and what the tests shorten beyond it.
type options struct {
	clients, keys, rate int
	step                time.Duration
	topology, memcached string
	listen, svg         string
	withoutCarryOver    bool

	fixed, sliding  limit.Limit
	refresh, settle time.Duration // of the flag, and of the Dual
}

func defaults() options {
	return options{
		clients: 32, keys: 200, rate: 40, step: 4 * time.Second, listen: "127.0.0.1:0",
		fixed: limit.Fixed(10, 2*time.Second), sliding: limit.Sliding(30, 10*time.Second, time.Second),
		refresh: time.Second, settle: 3 * time.Second,
	}
}

func (o *options) policy() limit.Policy {
	return limit.Policy{Name: "release", Limits: []limit.Limit{o.fixed, o.sliding}}
}

// run is the command; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := defaults()
	set := flag.NewFlagSet("migration", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&o.clients, "clients", o.clients, "how many `clients` ask")
	set.IntVar(&o.rate, "rate", o.rate, "how many `requests` a second each of them makes")
	set.IntVar(&o.keys, "keys", o.keys, "for how many `keys`: the first is asked for most, the last least")
	set.DurationVar(&o.step, "step", o.step, "how long a step of the release lasts")
	set.StringVar(&o.topology, "topology", "", "a topology `file`: use these Redis servers, with -memcached")
	set.StringVar(&o.memcached, "memcached", "", "`host:port`: use this Memcached, with -topology")
	set.StringVar(&o.listen, "listen", o.listen, "`address` that serves /debug/vars")
	set.StringVar(&o.svg, "svg", "", "draw the release into this `file`")
	set.BoolVar(&o.withoutCarryOver, "without-carry-over", false, "let keys begin afresh when they move, to see what that admits")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if err := o.validate(set.Args()); err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	total, err := play(ctx, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "migration:", err)
		return 1
	}
	return total.exitCode()
}

func (o *options) validate(rest []string) error {
	var errs []error
	for name, n := range map[string]int{"clients": o.clients, "rate": o.rate, "keys": o.keys} {
		if n < 1 {
			errs = append(errs, fmt.Errorf("-%s = %d: must be at least 1", name, n))
		}
	}
	if o.rate > 1000 {
		errs = append(errs, fmt.Errorf("-rate = %d: must be at most 1000; there can be more -clients", o.rate))
	}
	if o.step < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("-step = %v: must be at least 100ms", o.step))
	}
	if (o.topology == "") != (o.memcached == "") {
		errs = append(errs, errors.New("-topology and -memcached go together"))
	}
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("%q: there are flags only", rest))
	}
	return errors.Join(errs...)
}
