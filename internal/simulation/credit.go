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

// Credit is processes that admit on credit, with one server, for a while. Calls and replies are lost, charges come late, and
// processes die owing, or close, and are replaced. It is to be played in a bubble, whose time it needs.
//
// The report is checked against P14 for each key, limit and window; and against the server's counts, which may not hold more of a
// window than was admitted in it.
type Credit struct {
	Processes int // at any time
	Keys      int
	Limits    []limit.Limit
	Lease     lease.Config  // Now is not used
	Trip      time.Duration // there and back, at most
	Span      time.Duration
	Refunds   float64 // of the admissions, unless there is a bucket
	Resets    float64 // of the calls, unless there is a bucket
	Large     float64 // of the requests: their costs are from half of an allowance to one and a half
	Deaths    bool

	// Of charges: certainly not executed, lost on the way, executed without a reply, and executed after the caller has given up.
	Refused, LostCalls, LostReplies, Late float64

	Plant  CreditPlant
	Stated *lease.BoundError // what is checked; nil: what Lease says
}

// CreditPlant is a bug that the checks must find.
type CreditPlant int

const (
	_               CreditPlant = iota
	RenewedAtSend               // a charge is taken for made, and the allowance renewed, when it is sent
	Unmarked                    // a charge counts now instead of in its window
	LossForgotten               // a charge of unknown outcome is taken for made
	ChargedAgain                // a charge of unknown outcome is sent again
	ForgivenByReset             // what is charged soon after a reset is taken for a part of it
	FirstPartOnly               // a request is admitted if there is room for a part of it
)

// CreditReport is what came of it.
type CreditReport struct {
	Admitted, OnCredit, Denied int64
	Charges, Lost, Lives       int
	Resets, LargeOnCredit      int
	Above                      int64 // the most that a window, or a bucket, held above its Max
	Of                         int64 // what it may hold above it
	Violations                 []string
}

// credit is a Credit that is played, and its server.
type credit struct {
	Credit
	policy limit.Policy
	seed   uint64
	ends   time.Time
	lives  atomic.Int64

	mu     sync.Mutex // guards all below
	states map[string]*state.State
	books  map[string]*creditBook
	resets map[string]time.Time // the last ones
	report CreditReport
}

// Play plays it.
func (c Credit) Play(seed uint64) *CreditReport {
	w := &credit{
		Credit: c, policy: limit.Policy{Name: "credit", Limits: c.Limits}, seed: seed, ends: time.Now().Add(c.Span),
		states: make(map[string]*state.State), books: make(map[string]*creditBook), resets: make(map[string]time.Time),
	}
	for i := range c.Keys {
		key := "key:" + strconv.Itoa(i)
		w.states[key], w.books[key] = new(state.State), newCreditBook(w)
	}
	var running sync.WaitGroup
	for i := range c.Processes {
		running.Go(func() {
			for life := 0; time.Now().Before(w.ends); life++ {
				w.live(dice(seed, "process", i, life))
			}
		})
	}
	running.Wait()
	time.Sleep(10 * time.Second) // what is late arrives
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.books {
		b.close()
	}
	w.report.Lives = int(w.lives.Load())
	return &w.report
}

// live is the life of a process.
func (w *credit) live(random *rand.Rand) {
	link := &creditLink{w: w, random: rand.New(rand.NewPCG(random.Uint64(), 0)), life: w.lives.Add(1)}
	ls, err := lease.New(link, w.Lease)
	if err != nil {
		panic(err) // the scenario is at fault
	}
	ends := w.ends
	if w.Deaths {
		ends = time.Now().Add(span(random, 100*time.Millisecond, 3*time.Second))
	}
	var callers sync.WaitGroup
	for range 2 {
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		callers.Go(func() {
			for time.Now().Before(ends) && time.Now().Before(w.ends) {
				w.call(ls, link, random)
			}
		})
	}
	callers.Wait()
	if w.Deaths && chance(random, 0.7) {
		link.dead.Store(true) // nothing that it sends from now on arrives
	}
	_ = ls.Close()
}

// call makes a request, and maybe gives it back.
func (w *credit) call(ls *lease.Lease, link *creditLink, random *rand.Rand) {
	if chance(random, 0.3) {
		time.Sleep(span(random, 0, 4*time.Millisecond))
	}
	req := backend.Request{Key: "key:" + strconv.Itoa(random.IntN(w.Keys)), Policy: &w.policy, Cost: 1 + random.Int64N(3)}
	if w.Resets > 0 && chance(random, w.Resets) {
		_ = ls.Reset(context.Background(), req)
		return
	}
	if w.Large > 0 && chance(random, w.Large) {
		req.Cost = w.largeCost(random)
	}
	r, err := w.take(ls, &req)
	if err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	w.mu.Lock()
	switch {
	case !r.Allowed:
		w.report.Denied++
	case r.Source == backend.OnCredit:
		w.report.OnCredit++
		if req.Cost > 3 {
			w.report.LargeOnCredit++
		}
		fallthrough
	default:
		w.report.Admitted++
		w.books[req.Key].admit(link.life, &r, req.Cost)
	}
	w.mu.Unlock()
	if !r.Allowed {
		time.Sleep(span(random, 0, 8*time.Millisecond))
		return
	}
	if !chance(random, w.Refunds) {
		return
	}
	time.Sleep(span(random, 0, 30*time.Millisecond))
	w.mu.Lock() // from now on others may have it
	w.books[req.Key].giveBack(&r, req.Cost)
	w.mu.Unlock()
	_ = ls.Refund(context.Background(), req, r.Receipt(), req.Cost)
}

// creditLink is a process's way to the server.
type creditLink struct {
	w    *credit
	life int64
	dead atomic.Bool

	mu     sync.Mutex // guards random
	random *rand.Rand
}

var errLostCharge = errors.New("lost on the way")

func failed(op string, may bool) error {
	return &backend.Error{Op: op, Kind: backend.Unavailable, MayHaveCharged: may, Err: errLostCharge}
}

// travel is half of a trip.
func (l *creditLink) travel() {
	l.mu.Lock()
	d := span(l.random, 0, l.w.Trip/2)
	l.mu.Unlock()
	time.Sleep(d)
}

func (l *creditLink) roll() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.Float64()
}

// do runs one step at the server.
func (l *creditLink) do(req *backend.Request, step func(s *state.State, at state.At)) backend.Result {
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s, at := w.states[req.Key], state.Moment(req.Policy, req.Key, time.Now().UnixMicro())
	if req.Floor != nil {
		s.Join(req.Policy, at, req.Floor)
	}
	step(s, at)
	return backend.Result{Now: at.Micros, State: s.Clone(), Source: backend.Primary}
}

// Take implements [backend.Backend].
func (l *creditLink) Take(_ context.Context, req backend.Request) (backend.Result, error) {
	l.travel()
	if l.dead.Load() {
		return backend.Result{}, failed("take", false)
	}
	var verdict state.Verdict
	r := l.do(&req, func(s *state.State, at state.At) {
		verdict = s.Take(req.Policy, at, req.Cost)
		if verdict.Allowed {
			l.w.books[req.Key].charged(&verdict, req.Cost)
		}
	})
	r.Verdict = verdict
	l.travel()
	return r, nil
}

// Refund implements [backend.Refunder].
func (l *creditLink) Refund(_ context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	l.travel()
	if l.dead.Load() {
		return failed("refund", false)
	}
	l.do(&req, func(s *state.State, at state.At) {
		before := l.w.used(s, at)
		s.Refund(at, &receipt, amount)
		l.w.books[req.Key].refunded(&receipt, before, l.w.used(s, at))
	})
	l.travel()
	return nil
}

// Charge implements [backend.Charger].
func (l *creditLink) Charge(_ context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	w := l.w
	w.mu.Lock()
	w.report.Charges++
	w.mu.Unlock()
	charge := func() backend.Result {
		var verdict state.Verdict
		if w.Plant == Unmarked {
			mark = state.Mark{}
		}
		r := l.do(&req, func(s *state.State, at state.At) {
			verdict = s.Charge(req.Policy, at, mark, req.Cost)
			w.books[req.Key].charged(&verdict, req.Cost)
		})
		r.Verdict = verdict
		return r
	}
	pretend := func() backend.Result { // nothing is charged
		known := l.do(&req, func(*state.State, state.At) {})
		known.Verdict = known.State.Charged(req.Policy, state.Moment(req.Policy, req.Key, known.Now), mark, req.Cost)
		return known
	}
	if w.Plant == RenewedAtSend {
		known := pretend()
		go func() {
			time.Sleep(300 * time.Millisecond)
			charge()
		}()
		return known, nil
	}
	l.travel()
	if w.Plant == ForgivenByReset && w.sinceReset(req.Key) < 100*time.Millisecond {
		return pretend(), nil
	}
	lost := func() (backend.Result, error) {
		w.mu.Lock()
		w.report.Lost++
		w.mu.Unlock()
		switch w.Plant {
		case LossForgotten:
			return pretend(), nil
		case ChargedAgain:
			return backend.Result{}, failed("charge", false)
		}
		return backend.Result{}, failed("charge", true)
	}
	switch fate := l.roll(); {
	case l.dead.Load(), fate < w.Refused:
		return backend.Result{}, failed("charge", false)
	case fate < w.Refused+w.LostCalls:
		return lost()
	case fate < w.Refused+w.LostCalls+w.LostReplies:
		charge()
		return lost()
	case fate < w.Refused+w.LostCalls+w.LostReplies+w.Late:
		go func() {
			time.Sleep(time.Duration(l.roll() * float64(3*time.Second)))
			charge()
		}()
		time.Sleep(50 * time.Millisecond)
		return lost()
	}
	r := charge()
	l.travel()
	return r, nil
}

// Close implements [backend.Backend].
func (*creditLink) Close() error { return nil }
