package main

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/picture"
)

// job is one request of a trace: when it comes, and what it turns out to cost.
type job struct {
	at                   time.Duration
	prompt, output, most int64
	fails                bool
}

func (j *job) cost() int64 {
	if j.fails {
		return 0
	}
	return j.prompt + j.output
}

// took is how long the model takes: half a second, and 20 ms a token.
func (j *job) took() time.Duration {
	if j.fails {
		return 500 * time.Millisecond
	}
	return 500*time.Millisecond + time.Duration(j.output)*20*time.Millisecond
}

const (
	played = 10 * time.Minute
	minute = time.Minute
)

// newTrace is ten minutes of one tenant who would use half again as much as the budget: 1.2 requests a second, outputs of about 400
// tokens of which few are very long, and 3 % failures.
func newTrace() (all []job) {
	r := rand.New(rand.NewPCG(1, 2))
	for at := time.Duration(0); ; {
		at += time.Duration(r.ExpFloat64() / 1.2 * float64(time.Second))
		if at >= played {
			return all
		}
		output := min(int64(300*math.Exp(0.75*r.NormFloat64()))+1, 2048)
		all = append(all, job{at: at, prompt: 50 + r.Int64N(450), output: output, most: 2048, fails: r.IntN(100) < 3})
	}
}

// way is how a proxy estimates a cost before it is known.
type way struct {
	name     string
	estimate func(e *estimator, j *job) int64
}

// ways are those that are compared. To check and then report is to reserve next to nothing and to charge everything afterwards.
var ways = []way{
	{"check, then report", func(*estimator, *job) int64 { return 1 }},
	{"reserve the most", func(_ *estimator, j *job) int64 { return j.prompt + j.most }},
	{"reserve an estimate", func(e *estimator, j *job) int64 { return e.estimate(j.prompt, j.most) }},
}

// result is what a way made of a trace.
type result struct {
	way
	admitted, denied, wrongly int
	tokens, over              int64   // used in all, and above the budget of their minute
	used, held                []int64 // by the second, of the running minute: finished requests, and what is reserved for others
}

func playAll(trace []job, tokens, requests int64) (all []result, err error) {
	for _, w := range ways {
		r, err := play(trace, w, tokens, requests)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// running is a request that was admitted and is not finished.
type running struct {
	*job
	charge *charge
	ends   time.Duration
}

type byEnd []running

func (b byEnd) Len() int           { return len(b) }
func (b byEnd) Less(i, j int) bool { return b[i].ends < b[j].ends }
func (b byEnd) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *byEnd) Push(x any)        { *b = append(*b, x.(running)) }
func (b *byEnd) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

// play plays a trace against real Throttlers, in a time of its own. A request is wrongly denied if its minute would have had room
// for it and for all that were admitted in that, as is known in the end.
func play(trace []job, w way, tokens, requests int64) (r result, err error) {
	ctx, start := context.Background(), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := time.Duration(0)
	counts, err := memory.New(memory.Config{Now: func() time.Time { return start.Add(now) }})
	if err != nil {
		return r, err
	}
	defer counts.Close()
	b, err := newBudget(counts, tokens, requests)
	if err != nil {
		return r, err
	}
	defer b.close()
	r = result{way: w}
	var e estimator
	var open byEnd
	truth, finished := make([]int64, played/minute), make([]int64, played/minute)
	finish := func() error {
		done := heap.Pop(&open).(running)
		now = done.ends
		if done.fails {
			return done.charge.cancel(ctx)
		}
		e.learn(done.output)
		finished[done.at/minute] += done.cost()
		return done.charge.settle(ctx, done.cost())
	}
	for next := 0; now < played; {
		second := time.Duration(len(r.used)) * time.Second
		switch {
		case len(open) > 0 && open[0].ends <= second && (next == len(trace) || open[0].ends <= trace[next].at):
			if err := finish(); err != nil {
				return r, err
			}
		case next < len(trace) && trace[next].at <= second:
			j := &trace[next]
			next++
			now = j.at
			c, _, err := b.reserve(ctx, "acme", w.estimate(&e, j))
			if err != nil {
				return r, err
			}
			if c != nil {
				r.admitted++
				r.tokens += j.cost()
				truth[j.at/minute] += j.cost()
				heap.Push(&open, running{j, c, j.at + j.took()})
				continue
			}
			r.denied++
			if truth[j.at/minute]+j.cost() <= tokens {
				r.wrongly++
			}
		default:
			if now = second; now >= played {
				break
			}
			held := int64(0)
			for _, o := range open {
				if o.at/minute == now/minute {
					held += o.charge.tokens.Cost()
				}
			}
			r.used, r.held = append(r.used, finished[now/minute]), append(r.held, held)
		}
	}
	for len(open) > 0 { // the last ones end after the minute that they count in
		if err := finish(); err != nil {
			return r, err
		}
	}
	for _, n := range truth {
		r.over += max(0, n-tokens)
	}
	return r, nil
}

// table compares the ways.
func table(results []result) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "way\tadmitted\tdenied\twrongly denied\ttokens\tover budget\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s (%.1f %%)\t\n", r.name, r.admitted, r.denied, r.wrongly,
			picture.Number(float64(r.tokens)), picture.Number(float64(r.over)), 100*float64(r.over)/float64(r.tokens))
	}
	_ = w.Flush()
	return out.String()
}

// draw is the budget, what is reserved and what is used over time, for each way.
func draw(results []result, tokens int64) []byte {
	p := picture.Timeline{
		Title: "A budget of tokens, when the cost is known afterwards", Unit: "tokens of the minute so far",
		OfferedName: "reserved", AdmittedName: "used", Caption: "time", Duration: 4 * time.Minute, Step: time.Second, PlotHeight: 120,
	}
	steps := int(p.Duration / p.Step)
	for _, r := range results {
		plot := picture.Plot{
			Name: r.name, Line: &picture.Line{Name: "budget", At: float64(tokens)},
			Summary: fmt.Sprintf("%.1f %% over budget, %d of %d wrongly denied", 100*float64(r.over)/float64(r.tokens), r.wrongly, r.admitted+r.denied),
		}
		for i := range steps {
			plot.Offered = append(plot.Offered, r.used[i]+r.held[i])
			plot.Admitted = append(plot.Admitted, r.used[i])
		}
		p.Plots = append(p.Plots, plot)
	}
	return p.SVG()
}
