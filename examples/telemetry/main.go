// Command telemetry is a service with limits that tells everything it does: metrics, log events and spans.
//
//	cd examples/telemetry && go run .
//
// It starts its own servers, two groups of a Redis primary and a replica, and a Prometheus with the alerts of the folder
// dashboards, serves HTTP, and plays its clients, an operator who moves keys from memory to Redis by a flag and back, and an
// accident now and then: a primary that dies and comes back empty. It prints where to look:
//
//	metrics     http://127.0.0.1:40001/metrics
//	Prometheus  http://127.0.0.1:40002/alerts, with Debian's package /classic/alerts
//	12:00:05 INFO feature_flag.evaluation feature_flag.key=to-redis feature_flag.result.value=50 ...
//	12:00:20 WARN sluice.node.breaker_opened sluice.group=a sluice.node=127.0.0.1:40003
//
// For the graphs import dashboards/sluice.json into a Grafana that has this Prometheus as a source. -spans 0.01 prints the
// spans of a hundredth of all requests, too. A collector gets metrics, log events and spans by OTLP, as the environment says:
//
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 go run . -spans 0.01
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc go run .
//
// With -topology FILE it counts on servers that run already, and there are no
// accidents. It needs redis-server on PATH, and goes without Prometheus where there is none.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sluice-go/sluice/router"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "telemetry:", err)
		stop()
		os.Exit(1)
	}
}

// options are what the command line says, and what the test shortens beyond it.
type options struct {
	listen, topology, rules string
	spans                   float64 // share of the requests whose spans are printed
	rate                    int     // requests a second
	step, drill, down       time.Duration
	scrape                  time.Duration
	reader                  sdkmetric.Reader // of the metrics, beside Prometheus; may be nil
	started                 func(addresses)  // called once all runs
}

// addresses are where to look.
type addresses struct{ metrics, prometheus, alerts string }

func defaults() options {
	return options{
		listen: "127.0.0.1:0", rules: "../../dashboards/alerts.yml", rate: 300,
		step: 15 * time.Second, drill: 40 * time.Second, down: 8 * time.Second, scrape: 5 * time.Second,
		started: func(addresses) {},
	}
}

func command(ctx context.Context, args []string, out io.Writer) error {
	o := defaults()
	set := flag.NewFlagSet("telemetry", flag.ContinueOnError)
	set.SetOutput(out)
	set.StringVar(&o.listen, "listen", o.listen, "the `address` to serve HTTP on")
	set.StringVar(&o.topology, "topology", "", "a topology `file`: count on its servers instead of own ones")
	set.StringVar(&o.rules, "rules", o.rules, "the `file` with the alerts for Prometheus")
	set.Float64Var(&o.spans, "spans", 0, "the `share` of requests whose spans are printed, 0 to 1")
	set.IntVar(&o.rate, "rate", o.rate, "`requests` a second that the clients make")
	if err := set.Parse(args); err != nil {
		return err
	}
	switch {
	case set.NArg() > 0:
		return fmt.Errorf("arguments: %q must be none", set.Args())
	case !(o.spans >= 0 && o.spans <= 1):
		return fmt.Errorf("-spans: %v must be from 0 to 1", o.spans)
	case o.rate < 1 || o.rate > 100_000:
		return fmt.Errorf("-rate: %d must be from 1 to 100000", o.rate)
	}
	return run(ctx, o, out)
}

// run plays everything until ctx ends.
func run(ctx context.Context, o options, out io.Writer) error {
	dir, err := os.MkdirTemp("", "sluice-telemetry")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	print := &printer{out: out}

	var own *servers
	topology := router.Topology{}
	if o.topology != "" {
		topology, err = router.LoadTopology(o.topology)
	} else if own, err = startServers(ctx, dir); err == nil {
		defer own.stop()
		topology = own.topology
	}
	if err != nil {
		return err
	}
	sdk, err := newSDK(ctx, print, &o)
	if err != nil {
		return err
	}
	app, err := openApplication(ctx, topology, dir, sdk)
	if err != nil {
		return err
	}
	defer app.close()
	address, stop, err := serve(o.listen, app.handler())
	if err != nil {
		return err
	}
	defer stop()
	at := addresses{metrics: "http://" + address + "/metrics"}
	print.linef("metrics     %s", at.metrics)
	if _, err := exec.LookPath("prometheus"); err != nil {
		print.linef("no prometheus on PATH: apt-get install prometheus to see the alerts")
	} else {
		prometheus, err := startPrometheus(ctx, dir, address, &o)
		if err != nil {
			return err
		}
		defer prometheus.stop()
		at.prometheus = "http://" + prometheus.addr
		at.alerts = at.prometheus + alertsPage(ctx, at.prometheus)
		print.linef("Prometheus  %s", at.alerts)
	}
	o.started(at)
	return play(ctx, app, own, "http://"+address, &o)
}
