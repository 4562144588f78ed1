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
	Skew      float64       // above 1
	Policy    limit.Policy  // windows are clock-aligned, from the shortest to the longest, each a divisor of the next
	Lease     lease.Config  // with Slack, Flush is to be set
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
	Waited             int64 // requests that were not decided at once
	Failed             int64 // requests without an answer
	Lost               int64 // cost that was charged by takes whose replies were lost, or that the dead held
	Above              int64 // what was admitted above the Max of a window
	Kept               int64 // after all have closed, how far what is charged and not given back is off what was admitted

	// With Lease.Slack only.
	OnCredit      int64 // admitted on credit
	Charges       int64 // of a key each
	SharedCharges int64 // those that went together with others
	SharedCalls   int64 // in as many calls
	Debt          float64
	MostDebt      int64   // in all, at a moment
	MostAbove     float64 // the most of a window above its Max, as a share of it,
	AboveBound    float64 // and the bound of that, for as many processes as there were
	Overbound     int     // how often a window held more than the bound
	Overshoot     int64   // as the processes have seen it
	LostCharges   int64   // cost
	Uncharged     int64   // cost that the dead owed
}

// Calls are all that went to a server.
func (r *FleetReport) Calls() int64 {
	return r.Forwarded + r.Fetches + r.Refunds + r.ChargeCalls()
}

// ChargeCalls are those that charge.
func (r *FleetReport) ChargeCalls() int64 { return r.Charges - r.SharedCharges + r.SharedCalls }

// fleet is a Fleet that is played. It is the server, too: like one, it decides at its own clock, in one step, and says
// what it knows.
type fleet struct {
	Fleet
	ends time.Time

	mu     sync.Mutex // guards all below
	keys   []fleetKey
	names  map[string]int
	sent   sent
	leases []*lease.Lease
	report FleetReport
}

// sent counts what arrives at the server beside takes.
type sent struct{ refunds, charges, sharedCharges, sharedCalls int64 }

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
	after := w.sum()
	w.report.LostCharges, w.report.Overshoot = after.LostCharges, after.Overshoot
	w.settle()
	return &w.report
}

// process is asked until the end.
func (w *fleet) process(seed uint64, i int, names []string) {
	random, fate := dice(seed, "process", i), dice(seed, "fate", i)
	keys := rand.NewZipf(random, w.Skew, 1, uint64(len(names)-1))
	if w.Lease.Slack > 0 { // else all processes would charge at once, as windows end
		time.Sleep(span(dice(seed, "phase", i), 0, w.Lease.Flush))
	}
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
		key, asked := int(keys.Uint64()), time.Now()
		r, err := ls.Take(context.Background(), backend.Request{Key: names[key], Policy: &w.Policy, Cost: 1})
		w.answered(key, &r, err, time.Since(asked) > 0)
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
	w.report, w.sent = FleetReport{}, sent{}
	w.mu.Unlock()
	before, looks := w.sum(), 0
	for now := before; ; {
		w.report.Stranded += float64(now.Stranded)
		w.report.MostStranded = max(w.report.MostStranded, now.Stranded)
		w.report.Debt += float64(now.Debt)
		w.report.MostDebt = max(w.report.MostDebt, now.Debt)
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
	r.Refunds, r.Charges, r.SharedCharges, r.SharedCalls = w.sent.refunds, w.sent.charges, w.sent.sharedCharges, w.sent.sharedCalls
	r.Stranded /= float64(looks)
	r.Debt /= float64(looks)
	r.OnCredit = now.OnCredit - before.OnCredit
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
		sum.OnCredit += s.OnCredit
		sum.Debt += s.Debt
		sum.LostCharges += s.LostCharges
		sum.Overshoot = max(sum.Overshoot, s.Overshoot)
	}
	return sum
}
