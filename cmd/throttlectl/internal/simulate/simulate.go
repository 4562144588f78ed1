// Package simulate has the command that plays traffic against policies without a server.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/traffic"
	"github.com/sluice-go/sluice/limit"
)

const help = `Play traffic against a policy, or against several side by side, without a server and without waiting: time is that of the
traffic. The same command line prints the same result.

  throttlectl simulate --limit 10/1s --limit 240/1h --shape poisson:8/s --for 2h
  throttlectl simulate --compare 100/1m,100/1m@aligned,100/1m~1s,100/1m+100 --shape bursts:50@10s --svg compare.svg
  throttlectl simulate --compare "10/1s 240/1h,5/1s+20" --csv access.csv
  throttlectl simulate --policies policies.json --policy pro --compare 200/1s --csv access.csv

Limits:
  100/1m             fixed window, 100 a minute from the first request
  100/1m@aligned     fixed window, at multiples of a minute; @staggered: shifted by a hash of the key
  240/1h~1m          sliding window, in sub-buckets of a minute
  10/1s+20           token bucket, 10 a second, burst 20

Shapes, which add up if there are several:
` + traffic.ShapeHelp + `

` + traffic.CSVHelp + `

What is printed:
  MEAN WAIT        what the denied were told to wait (RetryAfter), in the mean
  DENIED IN A ROW  the longest run of denials of one key
  MOST ADMITTED    the most that one key was admitted in any span of that length, wherever it begins
  PROMISED         the most that the policy may admit in any such span, whatever the traffic`

const (
	defaultDuration = 10 * time.Minute
	maxDuration     = 366 * 24 * time.Hour
	maxCompared     = 8
)

type options struct {
	*cli.Factory
	policies.Selector
	compare     []string
	shapes      []string
	csv, svg    string
	duration    time.Duration
	keys        int
	zipf        float64
	seed        uint64
	description string // of the traffic
}

// New makes the simulate command.
func New(f *cli.Factory) *cobra.Command {
	o := &options{Factory: f}
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Play traffic against policies, without a server",
		Long:  help,
		Args:  cli.Operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			policies, err := o.candidates()
			if err != nil {
				return err
			}
			all, done, err := o.traffic(cmd)
			if err != nil {
				return err
			}
			defer done()
			return o.simulate(cmd.Context(), policies, all)
		},
	}
	o.Register(cmd)
	flags := cmd.Flags()
	flags.Lookup("policy").Usage = "`name` of the policy in the file of --policies"
	flags.StringArrayVar(&o.compare, "compare", nil, "`policies` to compare: limits, with commas between policies and spaces within")
	flags.StringArrayVar(&o.shapes, "shape", nil, "`shape` of the traffic, such as poisson:8/s; may be given several times")
	flags.StringVar(&o.csv, "csv", "", "`path` of a CSV file of requests instead; - for stdin")
	flags.StringVar(&o.svg, "svg", "", "`path` to draw what was offered and admitted over time to")
	flags.DurationVar(&o.duration, "for", defaultDuration, "how long the traffic lasts; of a CSV file by default all of it")
	flags.IntVar(&o.keys, "keys", 1, "number of keys, for --shape")
	flags.Float64Var(&o.zipf, "zipf", 0, "exponent of Zipf's law, by which keys are asked for; 0 for all alike")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of what is random, for --shape")
	for _, name := range []string{"compare", "shape", "for", "keys", "zipf", "seed"} {
		cli.NoFiles(cmd, name)
	}
	return cmd
}

// candidates are the policy of --policies or --limit, and those of --compare.
func (o *options) candidates() ([]limit.Policy, error) {
	var all []limit.Policy
	switch {
	case o.Name != "" && o.File == "":
		return nil, cli.Usage(errors.New("--policy goes with --policies: the name alone decides nothing"))
	case o.File != "" || len(o.Limits) > 0 || len(o.compare) == 0:
		p, err := o.Policy("")
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	for _, list := range o.compare {
		for text := range strings.SplitSeq(list, ",") {
			var p limit.Policy
			for field := range strings.FieldsSeq(text) {
				l, err := limit.Parse(field)
				if err != nil {
					return nil, cli.Usage(fmt.Errorf("--compare: %w", err))
				}
				p.Limits = append(p.Limits, l)
			}
			if err := p.Validate(); err != nil {
				return nil, cli.Usage(fmt.Errorf("--compare: %w", err))
			}
			all = append(all, p)
		}
	}
	if len(all) > maxCompared {
		return nil, cli.Usage(fmt.Errorf("%d policies: at most %d can be compared", len(all), maxCompared))
	}
	return all, nil
}

// traffic opens the traffic; the returned function closes it.
func (o *options) traffic(cmd *cobra.Command) (traffic.Traffic, func(), error) {
	given := cmd.Flags().Changed
	if given("shape") == given("csv") {
		return nil, nil, cli.Usage(errors.New("exactly one of --shape and --csv is needed"))
	}
	if (given("for") || !given("csv")) && (o.duration < time.Millisecond || o.duration > maxDuration) {
		return nil, nil, cli.Usage(fmt.Errorf("--for = %v: must be from 1ms to %v", o.duration, maxDuration))
	}
	if given("csv") {
		for _, name := range []string{"keys", "zipf", "seed"} {
			if given(name) {
				return nil, nil, cli.Usage(fmt.Errorf("--%s goes with --shape, not with --csv", name))
			}
		}
		if !given("for") {
			o.duration = 0
		}
		return o.open()
	}
	var shapes []traffic.Shape
	var errs []error
	for _, text := range o.shapes {
		s, err := traffic.ParseShape(text)
		shapes, errs = append(shapes, s), append(errs, err)
	}
	keys, err := traffic.NewKeys("key-", o.keys, o.zipf)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, nil, cli.Usage(err)
	}
	o.description = fmt.Sprintf("%s for %v", strings.Join(o.shapes, " and "), o.duration)
	return traffic.Generate(shapes, keys, o.seed, o.duration), func() {}, nil
}

func (o *options) open() (traffic.Traffic, func(), error) {
	switch o.csv {
	case "":
		return nil, nil, cli.Usage(errors.New("--csv is empty"))
	case "-":
		o.description = "stdin"
		return traffic.ReadCSV(o.In), func() {}, nil
	}
	file, err := os.Open(o.csv)
	if err != nil {
		return nil, nil, err
	}
	o.description = o.csv
	return traffic.ReadCSV(file), func() { _ = file.Close() }, nil
}

// simulate plays, draws and prints.
func (o *options) simulate(ctx context.Context, policies []limit.Policy, all traffic.Traffic) error {
	s := newSimulation(policies)
	if err := s.play(ctx, all, o.duration); err != nil {
		return fmt.Errorf("%s: %w", o.description, err)
	}
	if s.requests == 0 {
		return fmt.Errorf("%s: no requests", o.description)
	}
	var errs []error
	if o.svg != "" {
		errs = append(errs, os.WriteFile(o.svg, s.picture(o.description), 0o644))
	}
	if err := o.Print(s.report(o.description)); err != nil {
		return err
	}
	for _, c := range s.candidates {
		errs = append(errs, c.checkBound())
	}
	return errors.Join(errs...)
}
