package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/featureflag"
)

// percents are the steps of the operator: carefully forward, back at the first doubt, forward again.
var percents = []float64{0, 1, 10, 50, 100, 10, 100}

// shadowUntil is the first step without shadow calls: by then it is known what the new side would say.
const shadowUntil = 4

// release is one play.
type release struct {
	o        options
	out      io.Writer
	servers  *servers
	flags    featureflag.Source
	app      *application
	ledger   *ledger
	report   *report
	marks    []mark     // when the steps began
	reported dual.Stats // what is in the report already
}

// mark is the beginning of a step.
type mark struct {
	at      time.Duration
	percent float64
	redis   string
}

// play starts the servers and the application, plays the release and ends all that it has started.
func play(ctx context.Context, o options, out io.Writer) (total outcome, err error) {
	dir, err := os.MkdirTemp("", "sluice-migration-")
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(dir)
	r := &release{o: o, out: out, flags: featureflag.File(filepath.Join(dir, "flags.json"))}
	if r.servers, err = openServers(ctx, o, dir); err != nil {
		return outcome{}, err
	}
	defer r.servers.stop()
	if err := r.set(ctx, percents[0]); err != nil {
		return outcome{}, err
	}
	if r.app, err = startApplication(ctx, o, r.servers, r.flags); err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, r.app.close()) }()

	seen := &observed{app: r.app}
	url, stopServing, err := seen.serve(o.listen)
	if err != nil {
		return outcome{}, err
	}
	defer stopServing()
	fmt.Fprintf(out, "%d clients, %d requests a second, %d keys, each may have %s and %s.\nState: %s\n\n",
		o.clients, o.clients*o.rate, o.keys, &o.fixed, &o.sliding, url)
	return r.run(ctx)
}

// run plays the steps under load.
func (r *release) run(ctx context.Context) (outcome, error) {
	r.report, r.ledger = newReport(r.out), newLedger(r.o.step/8)
	asking, stop := context.WithCancel(ctx)
	wait := startClients(asking, r.app, r.ledger)
	defer wait() // after stop
	defer stop()

	for i, percent := range percents {
		if err := r.move(ctx, percent, i == len(percents)-1); err != nil {
			return outcome{}, err
		}
	}
	if err := r.leave(ctx); err != nil {
		return outcome{}, err
	}
	stop()
	wait()
	took := time.Since(r.ledger.start)
	over := 0
	for _, n := range overLimit(r.ledger.admissions(), r.o.fixed, r.o.sliding) {
		over += n
	}
	total := r.report.outcome(took, over, r.ledger.failure)
	fmt.Fprintf(r.out, "\n%v\n", total)
	if r.o.svg == "" {
		return total, nil
	}
	return total, r.draw(r.o.svg, total)
}

// move is a step: the operator sets a percentage, and waits. After the last one she waits until nothing can be carried
// over any more: until all processes have seen the change, and the counts from before it, and what may have been under
// way, are over.
func (r *release) move(ctx context.Context, percent float64, last bool) error {
	step := len(r.marks)
	if step > 0 { // the flag has its first percentage from the start
		if err := r.set(ctx, percent); err != nil {
			return err
		}
	}
	r.app.shadowing.Store(step < shadowUntil)
	r.begin(percent, strconv.FormatFloat(percent, 'g', -1, 64)+"%")
	length := r.o.step
	if last {
		length = max(length, r.o.refresh+r.o.sliding.Window+r.o.settle)
		fmt.Fprintf(r.out, "waiting %v for the carry-over to end: refresh + longest window + settle\n", length)
	}
	if err := pause(ctx, length); err != nil {
		return err
	}
	r.end(step < shadowUntil)
	return nil
}

// leave is the last step: one process after the other is replaced by one that knows Redis only.
func (r *release) leave(ctx context.Context) error {
	r.begin(percents[len(percents)-1], "alone")
	for _, p := range r.app.processes {
		if err := r.app.leaveMemcached(ctx, p); err != nil {
			return err
		}
		if err := pause(ctx, r.o.step/4); err != nil {
			return err
		}
	}
	r.servers.retireMemcached()
	if err := pause(ctx, r.o.step/2); err != nil {
		return err
	}
	r.end(false)
	return nil
}

// set is what an operator does with throttlectl flag set.
func (r *release) set(ctx context.Context, percent float64) error {
	_, err := featureflag.Set(ctx, r.flags, flagName, percent)
	return err
}

func (r *release) begin(percent float64, redis string) {
	r.marks = append(r.marks, mark{time.Since(r.ledger.start), percent, redis})
}

// end puts the step that ends now into the report.
func (r *release) end(shadowing bool) {
	step := len(r.marks) - 1
	t, stats := r.ledger.endStep(), r.app.stats()
	over := overLimit(r.ledger.admissions(), r.o.fixed, r.o.sliding)[step]
	r.report.add(newRow(r.marks[step].redis, t, over, combine(stats, r.reported, -1), shadowing))
	r.reported = stats
}
