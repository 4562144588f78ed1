package main

import (
	"context"
	"testing"
	"time"
)

// admitted is how many of n takes of a key that is unused are allowed. Some peers have windows that begin with the
// clock's hour: if one began meanwhile, a fresh key tries again.
func admitted(t *testing.T, p Peer, n int) int {
	t.Helper()
	for {
		got, key, hour := 0, "user:"+t.Name()+time.Now().Format(time.RFC3339Nano), time.Now().Truncate(time.Hour)
		for range n {
			allowed, err := p.Take(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if allowed {
				got++
			}
		}
		if time.Now().Truncate(time.Hour).Equal(hour) {
			return got
		}
	}
}

// Of Max+5 requests every peer admits Max: it is wired to the same limit as all others.
func TestPeersAdmitMax(t *testing.T) {
	s := newServer(t)
	for kind, makers := range map[string][]maker{
		"network": networkPeers, "hot": hotPeers, "attack": attackPeers, "memory": memoryPeers,
	} {
		for _, m := range makers {
			for _, max := range []int64{1, 20} { // 1 is what exhausted keys have
				setup := Setup{Addr: s.Addr, Conns: 4, Quotas: []Quota{{Max: max, Window: time.Hour}}}
				t.Run(kind+"/"+m.name, func(t *testing.T) {
					p, err := m.open(setup)
					if err != nil {
						t.Fatal(err)
					}
					defer p.Close()
					for range 2 { // keys are strangers
						if got := admitted(t, p, int(max)+5); got != int(max) {
							t.Errorf("%d of %d requests admitted, want %d", got, max+5, max)
						}
					}
				})
			}
		}
	}
}

// Whichever of several limits is the tightest decides.
func TestPeersCheckEveryLimit(t *testing.T) {
	s := newServer(t)
	for _, m := range networkPeers {
		if !m.many {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			for tightest := range 3 {
				quotas := []Quota{
					{Max: 100, Window: time.Hour}, {Max: 100, Window: 2 * time.Hour},
					{Max: 100, Window: 4 * time.Hour, Precision: 5 * time.Minute},
				}
				quotas[tightest].Max = 20
				p, err := m.open(Setup{Addr: s.Addr, Conns: 4, Quotas: quotas})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				if got := admitted(t, p, 25); got != 20 {
					t.Errorf("limit %d is the tightest: %d of 25 requests admitted, want 20", tightest, got)
				}
			}
		})
	}
}

// What was taken in the past counts now, until it is an hour ago.
func TestPast(t *testing.T) {
	s := newServer(t)
	for _, m := range networkPeers {
		if !m.many {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			p, err := m.open(Setup{Addr: s.Addr, Conns: 4,
				Quotas: []Quota{{Max: 20, Window: time.Hour, Precision: time.Minute}}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			now := time.Now()
			for _, tt := range []struct {
				ago  time.Duration
				want int
			}{
				{30 * time.Minute, 15},
				{90 * time.Minute, 20},
			} {
				past, err := p.(historian).At(now.Add(-tt.ago))
				if err != nil {
					t.Fatal(err)
				}
				key := t.Name() + tt.ago.String()
				got := 0
				for range 5 {
					if allowed, err := past.Take(t.Context(), key); err != nil || !allowed {
						t.Fatalf("%t, %v", allowed, err)
					}
				}
				if err := past.Close(); err != nil {
					t.Fatal(err)
				}
				for range 25 {
					allowed, err := p.Take(t.Context(), key)
					if err != nil {
						t.Fatal(err)
					}
					if allowed {
						got++
					}
				}
				if got != tt.want {
					t.Errorf("5 taken %s ago: %d more admitted, want %d", tt.ago, got, tt.want)
				}
			}
		})
	}
}

// With leases few requests reach Redis, and what they admit together is no more than Max.
func TestPeersLease(t *testing.T) {
	s := newServer(t)
	const max = 10_000 // a batch is ten
	for _, m := range hotPeers[:2] {
		t.Run(m.name, func(t *testing.T) {
			p, err := m.open(Setup{Addr: s.Addr, Conns: 4, Quotas: []Quota{{Max: max, Window: 24 * time.Hour}}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if got := admitted(t, p, max+500); got != max {
				t.Errorf("%d requests admitted, want %d", got, max)
			}
			for _, row := range []Row{hotAllowed, hotDenied} {
				c := fullConfig()
				c.slice = 100 * time.Millisecond
				keys := makeKeys(row.keyCount(&c))
				turn := turn{config: &c, server: s, all: make(callers, 64), row: row, keys: keys, order: makeOrder(len(keys), false, 1)}
				for try := 1; ; try++ { // a machine that is busy makes few decisions in a slice
					slice, failure, err := turn.run(t.Context(), m)
					if err != nil || failure != nil {
						t.Fatal(failure, err)
					}
					if slice.Commands <= 0.5 { // it is a thirtieth of that on a machine that has nothing else to do
						break
					}
					if try == 20 {
						t.Fatalf("%s: %.3f commands a decision", row.Name(), slice.Commands)
					}
				}
			}
		})
	}
}

// The instances admit together what one would.
func TestAttack(t *testing.T) {
	s := newServer(t)
	for _, m := range attackPeers {
		t.Run(m.name, func(t *testing.T) {
			c := fullConfig()
			keys := makeKeys(attackers)
			turn := turn{config: &c, server: s, all: make(callers, attack.Callers), row: attack, keys: keys,
				order: makeOrder(len(keys), false, 1)}
			if err := s.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			p, err := m.open(turn.setup())
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			o := turn.all.work(t.Context(), p, keys, turn.order, 1500*time.Millisecond, false)
			if o.failed > 0 {
				t.Fatalf("%d calls failed: %v", o.failed, o.firstError)
			}
			// A window and as much of the next as was begun; redis_rate's bucket is full at first.
			windows := 2 + int(o.elapsed/time.Second)
			calls := int(o.latencies.TotalCount()) // few on a machine that is busy
			if max := attackers * 10 * windows; o.allowed > max || o.allowed < min(max/3, calls/2) {
				t.Errorf("%d of %d admitted in %s, want at most %d", o.allowed, calls, o.elapsed, max)
			}
		})
	}
}

// A row's callers meet every key, and what they count is what the server has counted.
func TestWork(t *testing.T) {
	s := newServer(t)
	p, err := openIncr(Setup{Addr: s.Addr, Conns: 4, Quotas: []Quota{{Max: plenty, Window: time.Hour}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	keys, all := makeKeys(37), make(callers, 8)
	if o := all.work(t.Context(), p, keys, nil, 0, false); o.allowed != 37 || o.failed != 0 {
		t.Errorf("%d allowed and %d failed, want 37 and none", o.allowed, o.failed)
	}
	slice, failure, err := s.measure(t.Context(), all, p, keys, makeOrder(37, false, 1), 20*time.Millisecond, false)
	if err != nil || failure != nil {
		t.Fatal(failure, err)
	}
	if slice.Commands < 0.99 || slice.Commands > 1.01 {
		t.Errorf("an INCR takes %v commands", slice.Commands)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o := all.work(ctx, p, keys, nil, 0, false); o.failed == 0 || o.firstError == nil {
		t.Errorf("under a context that is over %d calls failed: %v", o.failed, o.firstError)
	}
}
