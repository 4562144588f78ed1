package main

import (
	"fmt"
	"io"
	"math"
)

// A target is a row of the table of speeds in README.md, or one of the numbers of a row.
type target struct {
	name    string
	measure func(*Report) float64 // NaN: not measured
	atLeast bool                  // whether bound is the least that holds; otherwise the most
	bound   float64
	against func(*Report) string // the peer that the name doesn't tell; nil if it tells all
}

var targets = []target{
	{"64 callers: decisions/s, sluice to incr-rueidis", network(manyCallers, sluice, incrRueidis, perSecond), true, 1, nil},
	fastest("64 callers: decisions/s", manyCallers, perSecond, true, 2.5),
	fastest("64 callers: Redis CPU", manyCallers, redisCPU, false, 0.4),
	fastest("64 callers: p99", manyCallers, p99, false, 0.6),
	{"256 callers: decisions/s, sluice to incr-rueidis", network(mostCallers, sluice, incrRueidis, perSecond), true, 0.9, nil},
	fastest("256 callers: decisions/s", mostCallers, perSecond, true, 2.5),
	fastest("256 callers: Redis CPU", mostCallers, redisCPU, false, 0.4),
	fastest("256 callers: p99", mostCallers, p99, false, 0.6),
	{"1 caller: p50, sluice to redis_rate", network(oneCaller, sluice, redisRate, p50), false, 0.95, nil},
	{"64 clients: Redis CPU, sluice to ulule", network(manyClients, sluice, ulule, redisCPU), false, 1, nil},
	{"64 clients: Redis CPU, sluice to redis_rate", network(manyClients, sluice, redisRate, redisCPU), false, 0.7, nil},
	{"64 clients: Redis CPU, sluice to incr", network(manyClients, sluice, incr, redisCPU), false, 2, nil},
	{"64 clients, hot keys: Redis CPU, sluice-credit to sluice", network(hotClients, sluiceCredit, sluice, redisCPU), false, 0.2, nil},
	{"64 clients, hot keys: p99 in us, sluice-credit", alone(hotClients, sluiceCredit, p99), false, 50, nil},
	{"three limits: Redis CPU, sluice to carlson", network(threeLimits, sluice, carlson, redisCPU), false, 0.25, nil},
	{"three limits after an hour: Redis CPU, sluice to carlson", network(longHistory, sluice, carlson, redisCPU), false, 0.25, nil},
	{"bytes per key, sluice to redis_rate", network(manyCallers, sluice, redisRate, bytesPerKey), false, 1, nil},
	{"bytes per key, sluice to github", network(manyCallers, sluice, github, bytesPerKey), false, 1, nil},
	{"leased, hot keys: Redis commands for a decision", alone(hotAllowed, sluiceLease, redisCommands), false, 0.01, nil},
	{"leased, parallel: time, sluice-lease-backend to sethvargo", inMemory(true, false, sluiceLeaseBackend, sethvargo), false, 1.5, nil},
	{"leased, parallel: allocations, sluice-lease-backend", inMemoryAllocs(true, false, sluiceLeaseBackend), false, 0, nil},
	{"denied, hot keys: Redis commands for a decision", alone(hotDenied, sluiceLease, redisCommands), false, 0.001, nil},
	{"denied, parallel: time, sluice-lease-backend to sethvargo", inMemory(true, true, sluiceLeaseBackend, sethvargo), false, 1.1, nil},
	{"denied, parallel: allocations, sluice-lease-backend", inMemoryAllocs(true, true, sluiceLeaseBackend), false, 0, nil},
	{"memory, parallel: time, sluice-backend to sethvargo", inMemory(false, false, sluiceBackend, sethvargo), false, 1, nil},
	{"memory, parallel: allocations, sluice-backend", inMemoryAllocs(false, false, sluiceBackend), false, 0, nil},
	{"HTTP, allowed: time, sluice-httplimit to httprate", inHTTP(false, httpNanos), false, 1, nil},
	{"HTTP, allowed: allocations, sluice-httplimit to httprate", inHTTP(false, httpAllocs), false, 1, nil},
	{"HTTP, denied: time, sluice-httplimit to httprate", inHTTP(true, httpNanos), false, 1, nil},
	{"HTTP, denied: allocations, sluice-httplimit to httprate", inHTTP(true, httpAllocs), false, 1, nil},
	{"ring of 10, idle cache: lookups in the time of one rendezvous", ringSpeed(10, false), true, 3, nil},
	{"ring of 10, busy cache: lookups in the time of one rendezvous", ringSpeed(10, true), true, 3, nil},
	{"ring of 100, idle cache: lookups in the time of one rendezvous", ringSpeed(100, false), true, 8, nil},
	{"ring of 100, busy cache: lookups in the time of one rendezvous", ringSpeed(100, true), true, 8, nil},
	{"ring of 10: allocations", ringFact(10, func(r *RingResult) float64 { return r.Allocs }), false, 0, nil},
	{"ring of 100: allocations", ringFact(100, func(r *RingResult) float64 { return r.Allocs }), false, 0, nil},
	{"ring of 10: max/mean load", ringFact(10, func(r *RingResult) float64 { return r.MaxMean }), false, 1.05, nil},
	{"ring of 10: moved keys to ideal", ringFact(10, func(r *RingResult) float64 { return r.Moved }), false, 1.05, nil},
}

// The metrics of one peer in one row.
func perSecond(r *NetworkResult) float64     { return r.Median.PerSecond }
func p50(r *NetworkResult) float64           { return r.Median.P50 }
func p99(r *NetworkResult) float64           { return r.Median.P99 }
func redisCPU(r *NetworkResult) float64      { return r.Median.RedisCPU }
func redisCommands(r *NetworkResult) float64 { return r.Median.Commands }
func bytesPerKey(r *NetworkResult) float64   { return float64(r.BytesPerKey) }

// alone is a metric of a peer that is compared with a number.
func alone(row Row, peer string, metric func(*NetworkResult) float64) func(*Report) float64 {
	return func(report *Report) float64 {
		for i := range report.Network {
			if r := &report.Network[i]; r.Row == row && r.find(peer) != nil {
				return metric(r.find(peer))
			}
		}
		return math.NaN()
	}
}

func network(row Row, peer, reference string, metric func(*NetworkResult) float64) func(*Report) float64 {
	return func(report *Report) float64 {
		for i := range report.Network {
			r := &report.Network[i]
			if r.Row != row {
				continue
			}
			if a, b := r.find(peer), r.find(reference); a != nil && b != nil {
				return ratio(metric(a), metric(b))
			}
		}
		return math.NaN()
	}
}

// fastest compares with the other limiter that makes the most decisions a second in the row.
func fastest(name string, row Row, metric func(*NetworkResult) float64, atLeast bool, bound float64) target {
	peer := func(report *Report) string {
		best, most := "", 0.0
		for _, m := range networkPeers {
			if m.name == sluice || m.name == sluiceBackend || m.name == incr || m.name == incrRueidis {
				continue
			}
			if rate := alone(row, m.name, perSecond)(report); rate > most {
				best, most = m.name, rate
			}
		}
		return best
	}
	return target{
		name: name + ", sluice to the fastest limiter", atLeast: atLeast, bound: bound, against: peer,
		measure: func(report *Report) float64 { return network(row, sluice, peer(report), metric)(report) },
	}
}

// inParallel is the row of the second table that all goroutines did, nil if it was not run.
func inParallel(report *Report, hot, denied bool) *MemoryRow {
	for i := range report.Memory {
		if r := &report.Memory[i]; r.Parallel && r.Hot == hot && r.Denied == denied {
			return r
		}
	}
	return nil
}

func inMemory(hot, denied bool, peer, reference string) func(*Report) float64 {
	return func(report *Report) float64 {
		if r := inParallel(report, hot, denied); r != nil {
			if a, b := r.find(peer), r.find(reference); a != nil && b != nil {
				return ratio(a.Nanos, b.Nanos)
			}
		}
		return math.NaN()
	}
}

func inMemoryAllocs(hot, denied bool, peer string) func(*Report) float64 {
	return func(report *Report) float64 {
		if r := inParallel(report, hot, denied); r != nil {
			if p := r.find(peer); p != nil {
				return p.Allocs
			}
		}
		return math.NaN()
	}
}

func httpNanos(r *MemoryResult) float64  { return r.Nanos }
func httpAllocs(r *MemoryResult) float64 { return r.Allocs }

func inHTTP(denied bool, metric func(*MemoryResult) float64) func(*Report) float64 {
	return func(report *Report) float64 {
		for i := range report.HTTP {
			r := &report.HTTP[i]
			if a, b := r.find(sluiceHTTP), r.find(httpRate); r.Denied == denied && a != nil && b != nil {
				return ratio(metric(a), metric(b))
			}
		}
		return math.NaN()
	}
}

func ringOf(report *Report, members int, busy bool, peer string) *RingResult {
	for i := range report.Rings {
		if r := &report.Rings[i]; r.Members == members && r.Busy == busy {
			return r.find(peer)
		}
	}
	return nil
}

func ringSpeed(members int, busy bool) func(*Report) float64 {
	return func(report *Report) float64 {
		ours, theirs := ringOf(report, members, busy, sluice), ringOf(report, members, busy, rendezvous)
		if ours == nil || theirs == nil {
			return math.NaN()
		}
		return ratio(theirs.Nanos, ours.Nanos)
	}
}

func ringFact(members int, metric func(*RingResult) float64) func(*Report) float64 {
	return func(report *Report) float64 {
		if r := ringOf(report, members, false, sluice); r != nil {
			return metric(r)
		}
		return math.NaN()
	}
}

// Verdict is a target with what was measured.
type Verdict struct {
	Name     string   `json:"name"`
	Measured *float64 `json:"measured"` // nil: not measured
	Target   string   `json:"target"`
	Holds    bool     `json:"holds"`
}

func (t *target) verdict(report *Report) Verdict {
	relation := "<="
	if t.atLeast {
		relation = ">="
	}
	v := Verdict{Name: t.name, Target: fmt.Sprintf("%s %v", relation, t.bound)}
	if t.against != nil {
		v.Name += ", " + t.against(report)
	}
	got := math.Round(t.measure(report)*1000) / 1000 // what the loops of a measurement allocate is no allocation of a decision
	if math.IsNaN(got) {
		return v
	}
	v.Measured = &got
	v.Holds = got <= t.bound
	if t.atLeast {
		v.Holds = got >= t.bound
	}
	return v
}

func verdicts(report *Report) []Verdict {
	all := make([]Verdict, len(targets))
	for i := range targets {
		all[i] = targets[i].verdict(report)
	}
	return all
}

func writeVerdicts(w io.Writer, all []Verdict) error {
	var t table
	t.add("row", "measured", "target", "holds")
	for _, v := range all {
		measured, holds := "-", "not measured"
		if v.Measured != nil {
			measured, holds = fmt.Sprintf("%.3g", *v.Measured), "no"
			if v.Holds {
				holds = "yes"
			}
		}
		t.add("  "+v.Name, measured, v.Target, holds)
	}
	return t.write(w)
}
