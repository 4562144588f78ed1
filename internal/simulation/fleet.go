package simulation

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Fleet is many processes, each with a [lease.Lease], that count in one place for a while: what a server has to carry
// of what they are asked. Nothing fails here. It is to be played in a bubble, whose time it needs.
//
// A process is asked at random moments, at Rate in the mean, one request after the other, and each request is for a random
// key: that of rank n is asked for 1/n^Skew times as often as the first.
type Fleet struct {
	Processes int
	Rate      float64 // requests a second, of each process
	Keys      int
	Skew      float64      // above 1
	Policy    limit.Policy // windows are clock-aligned, from the shortest to the longest, each a divisor of the next
	Lease     lease.Config
	Trip      time.Duration // there and back
	Warm      time.Duration // is not counted
	Span      time.Duration // is
}

// FleetReport is what came of it, in the time that is counted.
type FleetReport struct {
	Requests, Admitted int64
	Leased, Denied     int64 // requests that made no call: admitted from a lease, denied by the local view
	Forwarded, Fetches int64 // calls that take
	Refunds            int64 // calls that give back
	Returned           int64 // cost that was given back
	Early              int64 // requests denied that the limits had room for, at their windows' ends
	Stranded           float64
	MostStranded       int64   // in all, at a moment
	Bound              int64   // of that: a batch of the largest less one, of each key, for each process
	MostStrandedOf     float64 // the longest limit of a key, as a share of its Max
	LargestBatch       int64
	Unbounded          int   // how often more was stranded than the bound, in all or of a key
	Above              int64 // what was admitted above the Max of a window
	Kept               int64 // what is charged after all have closed, not admitted, and not given back
}

// Calls are all that went to a server.
func (r *FleetReport) Calls() int64 { return r.Forwarded + r.Fetches + r.Refunds }

// fleet is a Fleet that is played. It is the server, too: like one, it decides at its own clock, in one step, and says
// what it knows.
type fleet struct {
	Fleet
	ends time.Time

	mu     sync.Mutex // guards all below
	keys   []fleetKey
	names  map[string]int
	backs  int64 // refunds
	report FleetReport
}

// fleetKey is what is counted of a key.
type fleetKey struct {
	state   state.State
	tallies []tally // of the shortest windows, the latest at the end
	batch   int64   // the largest
	window  int64   // the longest one, as it is now
	out     int64   // what is charged to it, not given back, and not admitted yet
}

// tally is what became of a key's requests in one of its shortest windows.
type tally struct{ window, admitted, denied int64 }

// Play plays it.
func (f Fleet) Play(seed uint64) *FleetReport {
	w := &fleet{Fleet: f, keys: make([]fleetKey, f.Keys), names: make(map[string]int, f.Keys)}
	names := make([]string, f.Keys)
	for i := range names {
		names[i] = "key:" + strconv.Itoa(i)
		w.names[names[i]] = i
	}
	w.ends = time.Now().Add(f.Warm + f.Span)
	leases := make([]*lease.Lease, f.Processes)
	var running sync.WaitGroup
	for i := range leases {
		ls, err := lease.New(fleetLink{w}, f.Lease)
		if err != nil {
			panic(err) // the scenario is at fault
		}
		leases[i] = ls
		random := dice(seed, "process", i)
		running.Go(func() { w.process(ls, random, names) })
	}
	w.watch(leases)
	running.Wait()
	for _, ls := range leases {
		running.Go(func() { _ = ls.Close() })
	}
	running.Wait()
	w.settle()
	return &w.report
}

// process is asked until the end.
func (w *fleet) process(ls *lease.Lease, random *rand.Rand, names []string) {
	keys := rand.NewZipf(random, w.Skew, 1, uint64(len(names)-1))
	next := time.Now()
	for {
		next = next.Add(time.Duration(random.ExpFloat64() / w.Rate * float64(time.Second)))
		if !next.Before(w.ends) {
			return
		}
		time.Sleep(time.Until(next))
		key := int(keys.Uint64())
		r, err := ls.Take(context.Background(), backend.Request{Key: names[key], Policy: &w.Policy, Cost: 1})
		if err != nil {
			panic(err) // nothing fails here
		}
		w.answered(key, &r)
	}
}

// watch looks at the leases now and then, not at the ends of windows only, and counts what was done between Warm and the end.
func (w *fleet) watch(leases []*lease.Lease) {
	const every = 730 * time.Millisecond
	time.Sleep(w.Warm)
	w.mu.Lock()
	w.report, w.backs = FleetReport{}, 0
	w.mu.Unlock()
	before, looks := sumOf(leases), 0
	for now := before; ; {
		w.report.Stranded += float64(now.Stranded)
		w.report.MostStranded = max(w.report.MostStranded, now.Stranded)
		looks++
		w.inspect(now.Stranded)
		if !time.Now().Add(every).Before(w.ends) {
			break
		}
		time.Sleep(every)
		now = sumOf(leases)
	}
	time.Sleep(time.Until(w.ends))
	now := sumOf(leases)
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.report
	r.Refunds = w.backs
	r.Stranded /= float64(looks)
	r.Leased, r.Denied = now.Leased-before.Leased, now.Denied-before.Denied
	r.Forwarded, r.Fetches, r.Returned = now.Forwarded-before.Forwarded, now.Fetches-before.Fetches, now.Returned-before.Returned
}

func sumOf(leases []*lease.Lease) (sum lease.Stats) {
	for _, ls := range leases {
		s := ls.Stats()
		sum.Leased += s.Leased
		sum.Denied += s.Denied
		sum.Forwarded += s.Forwarded
		sum.Fetches += s.Fetches
		sum.Returned += s.Returned
		sum.Stranded += s.Stranded
	}
	return sum
}

// inspect looks at what is charged of each key and neither admitted nor given back. That is what is leased, and what is
// under way: a process has one request at a time, so that both together are no more than its batch.
func (w *fleet) inspect(stranded int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	window, bound := w.windowOf(w.longest(), time.Now().UnixMicro()), int64(0)
	for i := range w.keys {
		k := &w.keys[i]
		bound += max(k.batch-1, 0) * int64(w.Processes)
		if k.window != window {
			continue
		}
		if k.out > k.batch*int64(w.Processes) {
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
func (w *fleet) answered(key int, r *backend.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := &w.keys[key]
	t := k.tally(w.windowOf(&w.Policy.Limits[0], r.Now))
	w.report.Requests++
	if !r.Allowed {
		t.denied++
		return
	}
	t.admitted++
	w.report.Admitted++
	w.move(k, r.Now, -1)
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
	for i := range w.keys {
		k := &w.keys[i]
		w.report.Kept += max(k.out, -k.out)
		for j := range w.Policy.Limits {
			w.above(k, &w.Policy.Limits[j])
		}
		w.early(k, counted)
	}
}

// above looks for windows of a limit that hold more than its Max.
func (w *fleet) above(k *fleetKey, l *limit.Limit) {
	shortest := w.Policy.Limits[0].Window.Microseconds()
	window, held := int64(-1), int64(0)
	for _, t := range k.tallies {
		if of := w.windowOf(l, t.window*shortest); of != window {
			window, held = of, 0
		}
		held += t.admitted
		if held > l.Max {
			w.report.Above += min(t.admitted, held-l.Max)
		}
	}
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
				missed += min(t.denied, shortest.Max-t.admitted)
			}
		}
		w.report.Early += min(missed, room)
	}
}

// fleetLink is a process's way to the server.
type fleetLink struct{ w *fleet }

// Take implements [backend.Backend].
func (l fleetLink) Take(_ context.Context, req backend.Request) (r backend.Result, err error) {
	time.Sleep(l.w.Trip / 2)
	r = l.w.take(&req)
	time.Sleep(l.w.Trip / 2)
	return r, nil
}

// Refund implements [backend.Refunder].
func (l fleetLink) Refund(_ context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	time.Sleep(l.w.Trip / 2)
	l.w.refund(&req, &receipt, amount)
	time.Sleep(l.w.Trip / 2)
	return nil
}

// Close implements [backend.Backend].
func (fleetLink) Close() error { return nil }

func (w *fleet) take(req *backend.Request) backend.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, at := &w.keys[w.names[req.Key]], state.At{Micros: time.Now().UnixMicro()}
	if req.Floor != nil {
		k.state.Join(req.Policy, at, req.Floor)
	}
	r := backend.Result{Verdict: k.state.Take(req.Policy, at, req.Cost), Now: at.Micros, Source: backend.Primary}
	r.State = k.state.Clone()
	if r.Allowed {
		k.batch = max(k.batch, req.Cost)
		w.move(k, at.Micros, req.Cost)
	}
	return r
}

func (w *fleet) refund(req *backend.Request, receipt *state.Receipt, amount int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := &w.keys[w.names[req.Key]]
	w.backs++
	k.state.Refund(state.At{Micros: time.Now().UnixMicro()}, receipt, amount)
	end, _, _ := receipt.Charge(len(w.Policy.Limits) - 1)
	w.move(k, end-1, -amount)
}
