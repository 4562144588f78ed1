package simulation

import (
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// fleetKey is what is counted of a key.
type fleetKey struct {
	state   state.State
	tallies []tally // of the shortest windows, the latest at the end
	batch   int64   // the largest
	window  int64   // the longest one, as it is now
	out     int64   // what is charged to it, not given back, and not admitted yet
}

// most is how much a process may hold. A batch that is fetched ahead comes to what is left of the last, a quarter of both at most.
func (k *fleetKey) most() int64 {
	const smallest = 6 // what is fetched ahead
	if k.batch < smallest {
		return k.batch
	}
	return (4*k.batch + 2) / 3
}

// tally is what became of a key's requests in one of its shortest windows.
type tally struct{ window, admitted, denied int64 }

// inspect looks at what is charged of each key and neither admitted nor given back. That is what is leased, and what is
// under way: a process has one request at a time, so that both together are no more than its batch.
func (w *fleet) inspect(stranded int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	window, bound := w.windowOf(w.longest(), time.Now().UnixMicro()), int64(0)
	for i := range w.keys {
		k := &w.keys[i]
		bound += max(k.most()-1, 0) * int64(w.Processes)
		if k.window != window {
			continue
		}
		if k.out > k.most()*int64(w.Processes) {
			w.report.Unbounded++
		}
		w.report.MostStrandedOf = max(w.report.MostStrandedOf, float64(k.out)/float64(w.longest().Max))
		w.report.LargestBatch = max(w.report.LargestBatch, k.batch)
	}
	if w.report.Bound = bound; stranded > bound {
		w.report.Unbounded++
	}
}

func (w *fleet) longest() *limit.Limit { return &w.Policy.Limits[len(w.Policy.Limits)-1] }

// windowOf is which window of a limit a moment lies in.
func (w *fleet) windowOf(l *limit.Limit, micros int64) int64 { return micros / l.Window.Microseconds() }

// answered keeps what a process did with a request.
func (w *fleet) answered(key int, r *backend.Result, err error, waited bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Requests++
	if waited {
		w.report.Waited++
	}
	if err != nil {
		w.report.Failed++
		return
	}
	k := &w.keys[key]
	if !r.Allowed {
		k.tally(w.windowOf(&w.Policy.Limits[0], r.Now)).denied++
		return
	}
	receipt := r.Receipt()
	end, _, _ := receipt.Charge(0)
	k.tally(w.windowOf(&w.Policy.Limits[0], end-1)).admitted++
	w.report.Admitted++
	w.back(k, &receipt, 1)
}

// tally finds the tally of a window, one of the latest.
func (k *fleetKey) tally(window int64) *tally {
	i := len(k.tallies)
	for i > 0 && k.tallies[i-1].window > window {
		i--
	}
	if i > 0 && k.tallies[i-1].window == window {
		return &k.tallies[i-1]
	}
	k.tallies = append(k.tallies, tally{})
	copy(k.tallies[i+1:], k.tallies[i:])
	k.tallies[i] = tally{window: window}
	return &k.tallies[i]
}

// move adds to what is out of a key, in the longest window that a moment lies in, if that isn't over.
func (w *fleet) move(k *fleetKey, micros, cost int64) {
	switch window := w.windowOf(w.longest(), micros); {
	case window > k.window:
		k.window, k.out = window, cost
	case window == k.window:
		k.out += cost
	}
}

// settle adds up what was admitted, window by window, and what could have been.
func (w *fleet) settle() {
	counted := w.ends.Add(-w.Span).UnixMicro()
	w.report.AboveBound = float64(w.bound(w.longest())) / float64(w.longest().Max)
	for i := range w.keys {
		k := &w.keys[i]
		if k.window == w.windowOf(w.longest(), time.Now().UnixMicro()) { // what is left of a window that is over is not sent back
			w.report.Kept += max(k.out, -k.out)
		}
		for j := range w.Policy.Limits {
			w.above(k, &w.Policy.Limits[j])
		}
		w.early(k, counted)
	}
}

// above looks for windows of a limit that hold more than its Max.
func (w *fleet) above(k *fleetKey, l *limit.Limit) {
	shortest := w.Policy.Limits[0].Window.Microseconds()
	bound := w.bound(l)
	window, held := int64(-1), int64(0)
	for _, t := range k.tallies {
		if of := w.windowOf(l, t.window*shortest); of != window {
			window, held = of, 0
		}
		held += t.admitted
		above := held - l.Max
		if above <= 0 {
			continue
		}
		w.report.Above += min(t.admitted, above)
		if above > bound {
			w.report.Overbound++
		}
		if share := float64(above) / float64(l.Max); share > w.report.MostAbove {
			w.report.MostAbove, w.report.AboveBound = share, float64(bound)/float64(l.Max)
		}
	}
}

// bound is by how much a window may hold more than its Max, by P14: an allowance for each process, the successors of the dead
// included.
func (w *fleet) bound(l *limit.Limit) int64 {
	cfg := &w.Lease
	if cfg.Slack == 0 {
		return 0
	}
	return int64(len(w.leases)) * max(int64(cfg.Slack*float64(l.Max)/float64(cfg.Processes)), cfg.Least)
}

// early adds up how many of those who were denied all limits had room for: in their shortest window, and in the longest.
func (w *fleet) early(k *fleetKey, counted int64) {
	shortest := &w.Policy.Limits[0]
	for i := 0; i < len(k.tallies); {
		window := func(t tally) int64 { return w.windowOf(w.longest(), t.window*shortest.Window.Microseconds()) }
		of, room, missed := window(k.tallies[i]), w.longest().Max, int64(0)
		for ; i < len(k.tallies) && window(k.tallies[i]) == of; i++ {
			t := k.tallies[i]
			room -= t.admitted
			if (t.window+1)*shortest.Window.Microseconds() > counted {
				missed += max(0, min(t.denied, shortest.Max-t.admitted))
			}
		}
		w.report.Early += max(0, min(missed, room))
	}
}
