package main

import "testing"

func TestTargets(t *testing.T) {
	result := func(peer string, perSecond float64, bytes int64) NetworkResult {
		return NetworkResult{Peer: peer, Median: Slice{PerSecond: perSecond, RedisCPU: 1 / perSecond}, BytesPerKey: bytes}
	}
	report := &Report{
		Network: []NetworkRow{{Row: manyCallers, Peers: []NetworkResult{
			result(sluice, 500, 100), result(redisRate, 100, 104), result(github, 90, 96), result(ulule, 190, 72), result(incrRueidis, 600, 72),
		}}, {Row: hotAllowed, Peers: []NetworkResult{
			{Peer: sluiceLease, Median: Slice{PerSecond: 4900, Commands: 0.01}}, result(sluice, 100, 100),
		}}, {Row: hotDenied, Peers: []NetworkResult{{Peer: sluiceLease, Median: Slice{Commands: 0.002}}}}},
		Memory: []MemoryRow{
			{Parallel: true, Denied: true, Peers: []MemoryResult{{Peer: sluiceBackend, Nanos: 9}, {Peer: sethvargo, Nanos: 1}}},
			{Parallel: true, Peers: []MemoryResult{{Peer: sluiceBackend, Nanos: 10, Allocs: 0.0001}, {Peer: sethvargo, Nanos: 10}}},
			{Hot: true, Parallel: true, Peers: []MemoryResult{
				{Peer: sluiceLeaseBackend, Nanos: 16, Allocs: 0.0001}, {Peer: sethvargo, Nanos: 10},
			}},
			{Hot: true, Parallel: true, Denied: true, Peers: []MemoryResult{
				{Peer: sluiceLeaseBackend, Nanos: 11, Allocs: 1}, {Peer: sethvargo, Nanos: 10},
			}},
		},
		HTTP: []MemoryRow{
			{Peers: []MemoryResult{{Peer: sluiceHTTP, Nanos: 11, Allocs: 4}, {Peer: httpRate, Nanos: 10, Allocs: 10}}},
			{Denied: true, Peers: []MemoryResult{{Peer: sluiceHTTP, Nanos: 9, Allocs: 14}, {Peer: httpRate, Nanos: 10, Allocs: 13}}},
		},
		Rings: []RingRow{{Members: 10, Peers: []RingResult{
			{Peer: sluice, Nanos: 10, Allocs: 1, MaxMean: 1.04, Moved: 1.06}, {Peer: rendezvous, Nanos: 29},
		}}},
	}
	want := map[string]bool{
		"64 callers: decisions/s, sluice to incr-rueidis":               false,
		"64 callers: decisions/s, sluice to the fastest limiter, ulule": true,
		"64 callers: Redis CPU, sluice to the fastest limiter, ulule":   true,
		"bytes per key, sluice to redis_rate":                           true,
		"bytes per key, sluice to github":                               false,
		"leased, hot keys: Redis commands for a decision":               true,
		"leased, parallel: time, sluice-lease-backend to sethvargo":     false,
		"leased, parallel: allocations, sluice-lease-backend":           true,
		"denied, hot keys: Redis commands for a decision":               false,
		"denied, parallel: time, sluice-lease-backend to sethvargo":     true,
		"denied, parallel: allocations, sluice-lease-backend":           false,
		"memory, parallel: time, sluice-backend to sethvargo":           true,
		"memory, parallel: allocations, sluice-backend":                 true,
		"ring of 10, idle cache: lookups in the time of one rendezvous": false,
		"HTTP, allowed: time, sluice-httplimit to httprate":             false,
		"HTTP, allowed: allocations, sluice-httplimit to httprate":      true,
		"HTTP, denied: time, sluice-httplimit to httprate":              true,
		"HTTP, denied: allocations, sluice-httplimit to httprate":       false,
		"ring of 10: allocations":                                       false,
		"ring of 10: max/mean load":                                     true,
		"ring of 10: moved keys to ideal":                               false,
	}
	measured := make(map[string]bool)
	for _, v := range verdicts(report) {
		if v.Measured == nil {
			if v.Holds {
				t.Errorf("%s holds, and was not measured", v.Name)
			}
			continue
		}
		measured[v.Name] = true
		if holds, ok := want[v.Name]; ok && holds != v.Holds {
			t.Errorf("%s: measured %v, target %s: holds is %t", v.Name, *v.Measured, v.Target, v.Holds)
		}
	}
	for name := range want {
		if !measured[name] {
			t.Errorf("%s was not measured", name)
		}
	}
	if measured["256 callers: decisions/s, sluice to incr-rueidis"] || measured["ring of 100: allocations"] ||
		measured["ring of 10, busy cache: lookups in the time of one rendezvous"] {
		t.Error("what is not in the report was measured")
	}
}
