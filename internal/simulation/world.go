package simulation

import (
	"fmt"
	"hash/fnv"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// Plant is a bug planted in the servers or the network, to see that the simulation finds it.
type Plant uint8

const (
	NoPlant      Plant = iota
	FloorIgnored       // servers don't join the floors that requests bring
	RefundTwice        // the network delivers each refund twice
	TakeTwice          // and some takes
	LeaseTooLong       // the clocks of leases are slow, so that leases are spent past their time
	SealIgnored        // servers take although the key was sealed
)

// Scenario is what may happen in a run. The zero value of most fields is "not at all".
type Scenario struct {
	Groups    int // of servers
	Instances int // at any time
	Callers   int // of each
	Keys      int
	Span      time.Duration  // zero: 3 s
	Policies  []limit.Policy // one of them is played; none: all that there are
	NoLeases  bool           // the local view only
	Patient   bool           // no caller gives up early

	LoseRequests, LoseReplies float64 // the chance of a message to be lost
	Partitions, Freezes       int     // how many, somewhere, sometime
	Failovers, Flushes        int
	Changes                   int     // of the topology
	Informed                  bool    // each instance hears of each change, and soon
	Crashes                   bool    // instances die, otherwise they only close
	Refunds, Resets           float64 // the chance of a call to be a reservation that is given back, or a reset

	Plant Plant
	Story bool // keep all events, not the last ones
}

// lossy is whether a server may forget.
func (s *Scenario) lossy() bool { return s.Failovers+s.Flushes > 0 }

// faulty is whether a call may fail although the library is right.
func (s *Scenario) faulty() bool {
	return s.lossy() || s.LoseRequests+s.LoseReplies > 0 || s.Partitions+s.Freezes > 0
}

// Report is what came of a run.
type Report struct {
	Policy     string
	Violations []string
	Trace      []string // the last events
	Digest     uint64   // of all events: two runs of one seed have the same

	Calls, Admitted, Errors int
	Sources                 map[backend.Source]int
	Inexact                 int
	Moves                   int // charges that were made under a topology's move
	Lost                    int // charges that servers forgot
}

// world is one run.
type world struct {
	Scenario
	seed    uint64
	began   time.Time
	ends    time.Time
	policy  *limit.Policy
	running sync.WaitGroup // messages

	mu         sync.Mutex // guards all below, and the nodes
	nodes      []*node
	keys       []string
	partitions []partition
	published  router.Topology // what instances that start read
	live       []*instance     // by slot
	book       *book
	report     Report
}

// partition keeps the instances of a slot from a group for a while.
type partition struct {
	period
	slot  int
	group string
}

// Policies are those that scenarios play.
var Policies = []limit.Policy{
	{Name: "fixed", Limits: []limit.Limit{limit.Fixed(60, time.Second)}},
	{Name: "aligned", Limits: []limit.Limit{limit.Fixed(60, time.Second).Aligned()}},
	{Name: "sliding", Limits: []limit.Limit{limit.Sliding(60, time.Second, 250*time.Millisecond)}},
	{Name: "bucket", Limits: []limit.Limit{limit.TokenBucket(40, time.Second, 40)}},
	{Name: "windows", Limits: []limit.Limit{limit.Fixed(50, time.Second), limit.Sliding(90, 2*time.Second, 500*time.Millisecond)}},
	{Name: "both", Limits: []limit.Limit{limit.TokenBucket(50, time.Second, 40), limit.Fixed(90, 2*time.Second).Aligned()}},
}

// Play runs a scenario in the current synctest bubble and reports what was wrong.
func Play(seed uint64, s Scenario) *Report {
	if s.Span == 0 {
		s.Span = 3 * time.Second
	}
	if s.Policies == nil {
		s.Policies = Policies
	}
	w := &world{Scenario: s, seed: seed, began: time.Now(), published: router.Topology{Epoch: 1}}
	w.policy = &s.Policies[seed%uint64(len(s.Policies))]
	w.ends = w.began.Add(s.Span)
	w.report = Report{Policy: w.policy.Name, Sources: make(map[backend.Source]int)}
	w.live = make([]*instance, s.Instances)
	for k := range s.Keys {
		w.keys = append(w.keys, fmt.Sprint("key", k))
	}
	w.book = newBook(w)
	for g := range s.Groups {
		w.nodes = append(w.nodes, newNode(w, fmt.Sprint("g", g)))
	}
	w.published = w.topology(dice(seed, "topology", 1).Uint64(), 1)
	w.misfortunes()

	goroutines := runtime.NumGoroutine()
	var all sync.WaitGroup
	for slot := range s.Instances {
		all.Go(func() { w.occupy(slot) })
	}
	all.Go(w.operate)
	all.Go(w.fate)
	all.Wait()
	w.running.Wait()
	time.Sleep(time.Minute) // calls that still wait for a timeout
	if n := runtime.NumGoroutine(); n > goroutines {
		w.violate("%d goroutines are left", n-goroutines)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.book.close()
	return &w.report
}

// misfortunes are what is known beforehand: who does not reach whom, and who freezes.
func (w *world) misfortunes() {
	for i := range w.Partitions {
		r := dice(w.seed, "partition", i)
		from := w.began.Add(span(r, 0, w.Span))
		w.partitions = append(w.partitions, partition{
			period{from, from.Add(span(r, 50*time.Millisecond, 900*time.Millisecond))}, r.IntN(w.Instances), w.nodes[r.IntN(w.Groups)].group,
		})
	}
	for i := range w.Freezes {
		r := dice(w.seed, "freeze", i)
		from := w.began.Add(span(r, 0, w.Span))
		n := w.nodes[r.IntN(w.Groups)]
		n.frozen = append(n.frozen, period{from, from.Add(span(r, 20*time.Millisecond, 700*time.Millisecond))})
	}
}

// fate lets servers forget.
func (w *world) fate() {
	type blow struct {
		at    time.Time
		n     *node
		flush bool
	}
	var blows []blow
	order := dice(w.seed, "blows").Perm(w.Groups) // one server after the other
	for i := range w.Failovers + w.Flushes {
		r := dice(w.seed, "blow", i)
		blows = append(blows, blow{w.began.Add(span(r, w.Span/10, w.Span)), w.nodes[order[i%w.Groups]], i >= w.Failovers})
	}
	for len(blows) > 0 {
		next := 0
		for i := range blows {
			if blows[i].at.Before(blows[next].at) {
				next = i
			}
		}
		b := blows[next]
		blows = append(blows[:next], blows[next+1:]...)
		time.Sleep(time.Until(b.at))
		w.mu.Lock()
		if b.flush {
			w.note("%s: flushed", b.n.group)
			b.n.flush()
		} else {
			w.note("%s: failover", b.n.group)
			b.n.fail()
		}
		w.mu.Unlock()
	}
}

// operate publishes topologies, which instances hear of at different times, or by others only.
func (w *world) operate() {
	for change := range w.Changes {
		r := dice(w.seed, "change", change)
		time.Sleep(span(r, w.Span/20, 2*w.Span/time.Duration(w.Changes+1)))
		if time.Now().After(w.ends) {
			return
		}
		w.mu.Lock()
		next := w.topology(r.Uint64(), w.published.Epoch+1)
		previous := w.published
		last := &previous
		for depth := 1; last.Previous != nil && depth < 4; depth++ {
			older := *last.Previous
			last.Previous = &older
			last = &older
		}
		last.Previous, last.Baseline = nil, last.Epoch > 1
		next.Previous = &previous
		w.published = next
		w.note("topology %d: %v", next.Epoch, groupsOf(next))
		live := append([]*instance(nil), w.live...)
		w.mu.Unlock()
		for slot, in := range live {
			r := dice(w.seed, "informed", change, slot)
			if in == nil || chance(r, 0.3) && !w.Informed {
				continue
			}
			w.running.Go(func() {
				time.Sleep(span(r, 0, w.newsTake()))
				in.update(next)
			})
		}
	}
}

func (w *world) newsTake() time.Duration {
	if w.Informed {
		return w.Span / 40
	}
	return w.Span / 5
}

// topology is one of some groups, at least two of them where there are as many.
func (w *world) topology(random, epoch uint64) router.Topology {
	t := router.Topology{Epoch: epoch}
	skip := int(random % uint64(w.Groups+1))
	for i, n := range w.nodes {
		if i == skip && w.Groups > 1 || i == int(random>>8%uint64(w.Groups)) && w.Groups > 3 {
			continue
		}
		t.Groups = append(t.Groups, router.Group{Name: n.group, Primary: n.group + ":1", Replicas: []string{n.group + ":2"}})
	}
	return t
}

func groupsOf(t router.Topology) (names []string) {
	for i := range t.Groups {
		names = append(names, t.Groups[i].Name)
	}
	return names
}

const traced = 60 // events

// note keeps an event for the report. The mutex is held.
func (w *world) note(format string, args ...any) {
	event := fmt.Sprintf("%11.6f "+format, append([]any{time.Since(w.began).Seconds()}, args...)...)
	h := fnv.New64a()
	_, _ = h.Write([]byte(event))
	w.report.Digest += h.Sum64() // a sum, for of what happens at one instant the order means nothing
	if len(w.report.Violations) > 0 {
		return // the story ends with the first
	}
	if w.report.Trace = append(w.report.Trace, event); len(w.report.Trace) > 2*traced && !w.Story {
		w.report.Trace = append(w.report.Trace[:0], w.report.Trace[traced:]...)
	}
}

// violate reports that a promise was broken. The mutex is held.
func (w *world) violate(format string, args ...any) {
	what := fmt.Sprintf("%.6f "+format, append([]any{time.Since(w.began).Seconds()}, args...)...)
	w.note("broken: %s", what)
	w.report.Violations = append(w.report.Violations, what)
}
