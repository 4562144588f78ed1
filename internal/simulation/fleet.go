package simulation

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Fleet is many processes, each with a [lease.Lease], that count in one place for a while: what a server has to carry
// of what they are asked. It is to be played in a bubble, whose time it needs.
//
// A process is asked at random moments, at Rate in the mean, one request after the other, and each request is for a random
// key: that of rank n is asked for 1/n^Skew times as often as the first.
type Fleet struct {
	Processes int
	Rate      float64                           // requests a second, of each process
	Pace      func(since time.Duration) float64 // a factor of Rate, by the time since the start; nil: 1
	Keys      int
	Skew      float64      // above 1
	Policy    limit.Policy // windows are clock-aligned, from the shortest to the longest, each a divisor of the next
	Lease     lease.Config
	Trip      time.Duration // there and back
	Start     time.Duration // before anything happens
	Warm      time.Duration // is not counted
	Span      time.Duration // is
	Deaths    float64       // share of the processes that die once in Span, with what they hold; each has a successor at once
	Loses     float64       // share of the replies that are lost, of takes and refunds
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
	Failed             int64 // requests without an answer
	Lost               int64 // cost that was charged by takes whose replies were lost, or that the dead held
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
	leases []*lease.Lease
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

// Play plays it.
func (f Fleet) Play(seed uint64) *FleetReport {
	w := &fleet{Fleet: f, keys: make([]fleetKey, f.Keys), names: make(map[string]int, f.Keys)}
	names := make([]string, f.Keys)
	for i := range names {
		names[i] = "key:" + strconv.Itoa(i)
		w.names[names[i]] = i
	}
	time.Sleep(f.Start)
	w.ends = time.Now().Add(f.Warm + f.Span)
	var running sync.WaitGroup
	for i := range f.Processes {
		running.Go(func() { w.process(seed, i, names) })
	}
	w.watch()
	running.Wait()
	for _, ls := range w.leases {
		running.Go(func() { _ = ls.Close() })
	}
	running.Wait()
	w.settle()
	return &w.report
}

// process is asked until the end.
func (w *fleet) process(seed uint64, i int, names []string) {
	random, fate := dice(seed, "process", i), dice(seed, "fate", i)
	keys := rand.NewZipf(random, w.Skew, 1, uint64(len(names)-1))
	start := time.Now()
	next, dies := start, w.ends
	if float64(i) < w.Deaths*float64(w.Processes) {
		dies = start.Add(w.Warm + span(fate, 0, w.Span))
	}
	link := &fleetLink{w: w, fate: fate}
	ls := w.open(link)
	for {
		rate := w.Rate
		if w.Pace != nil {
			rate *= w.Pace(next.Sub(start))
		}
		next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		if !next.Before(w.ends) {
			return
		}
		if !next.Before(dies) {
			time.Sleep(time.Until(dies))
			link.dead.Store(true)
			_ = ls.Close()
			link, dies = &fleetLink{w: w, fate: fate}, w.ends
			ls = w.open(link)
		}
		time.Sleep(time.Until(next))
		key := int(keys.Uint64())
		r, err := ls.Take(context.Background(), backend.Request{Key: names[key], Policy: &w.Policy, Cost: 1})
		w.answered(key, &r, err)
	}
}

func (w *fleet) open(link *fleetLink) *lease.Lease {
	ls, err := lease.New(link, w.Lease)
	if err != nil {
		panic(err) // the scenario is at fault
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases = append(w.leases, ls)
	return ls
}

// watch looks at the leases now and then, not at the ends of windows only, and counts what was done between Warm and the end.
func (w *fleet) watch() {
	const every = 730 * time.Millisecond
	time.Sleep(w.Warm)
	w.mu.Lock()
	w.report, w.backs = FleetReport{}, 0
	w.mu.Unlock()
	before, looks := w.sum(), 0
	for now := before; ; {
		w.report.Stranded += float64(now.Stranded)
		w.report.MostStranded = max(w.report.MostStranded, now.Stranded)
		looks++
		w.inspect(now.Stranded)
		if !time.Now().Add(every).Before(w.ends) {
			break
		}
		time.Sleep(every)
		now = w.sum()
	}
	time.Sleep(time.Until(w.ends))
	now := w.sum()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.report
	r.Refunds = w.backs
	r.Stranded /= float64(looks)
	r.Leased, r.Denied = now.Leased-before.Leased, now.Denied-before.Denied
	r.Forwarded, r.Fetches, r.Returned = now.Forwarded-before.Forwarded, now.Fetches-before.Fetches, now.Returned-before.Returned
}

func (w *fleet) sum() (sum lease.Stats) {
	w.mu.Lock()
	leases := w.leases
	w.mu.Unlock()
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
func (w *fleet) answered(key int, r *backend.Result, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Requests++
	if err != nil {
		w.report.Failed++
		return
	}
	k := &w.keys[key]
	t := k.tally(w.windowOf(&w.Policy.Limits[0], r.Now))
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
type fleetLink struct {
	w    *fleet
	dead atomic.Bool

	mu   sync.Mutex // guards fate
	fate *rand.Rand
}

var errReplyLost = errors.New("reply lost")

// loses is whether a reply is lost.
func (l *fleetLink) loses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Loses > 0 && chance(l.fate, l.w.Loses)
}

// Take implements [backend.Backend].
func (l *fleetLink) Take(_ context.Context, req backend.Request) (r backend.Result, err error) {
	time.Sleep(l.w.Trip / 2)
	r = l.w.take(&req)
	time.Sleep(l.w.Trip / 2)
	if l.loses() {
		if r.Allowed {
			receipt := r.Receipt()
			l.w.lose(&req, &receipt, req.Cost)
		}
		return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, MayHaveCharged: true, Err: errReplyLost}
	}
	return r, nil
}

// Refund implements [backend.Refunder].
func (l *fleetLink) Refund(_ context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if l.dead.Load() {
		l.w.lose(&req, &receipt, amount)
		return nil
	}
	time.Sleep(l.w.Trip / 2)
	l.w.refund(&req, &receipt, amount)
	time.Sleep(l.w.Trip / 2)
	if l.loses() {
		return &backend.Error{Op: "refund", Kind: backend.Unavailable, MayHaveCharged: true, Err: errReplyLost}
	}
	return nil
}

// Close implements [backend.Backend].
func (*fleetLink) Close() error { return nil }

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
	w.back(k, receipt, amount)
}

// lose books what is charged, and will neither be admitted nor given back.
func (w *fleet) lose(req *backend.Request, receipt *state.Receipt, amount int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Lost += amount
	w.back(&w.keys[w.names[req.Key]], receipt, amount)
}

func (w *fleet) back(k *fleetKey, receipt *state.Receipt, amount int64) {
	end, _, _ := receipt.Charge(len(w.Policy.Limits) - 1)
	w.move(k, end-1, -amount)
}
