package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// hardKeys must all be strangers to each other, under every policy.
func hardKeys() []string {
	long := strings.Repeat("k", 1<<20)
	return []string{
		"a", "b", "c", "aa", "a:a", "aa:b", "a:b", "b:c", "a:b:c", ":", "::", "a:", ":a", // with policies named a and b
		"alice", "alice:exp", "alice:reset", "alice{", "{alice}", "{alice", "alice}", "{}", "{}alice", "{a}{b}",
		"alice ", " alice", "alice\x00", "alice\n", "alice\r", "alice\r\n", "\x00", "\n", "\r\nFLUSHALL\r\n", "\t", " ", "\x7f",
		"%", "%20", "%2520", "%00", "%~5~", "alice%00", "alice%0A", "alice%",
		"\xff", "\xfe", "\xff\xfe", "\xc3\x28", "\xed\xa0\x80", "\uFFFD", "alice\xff", "alice\uFFFD",
		"caf\u00e9", "cafe\u0301", "\u212b", "\u00c5", "A\u030a", "\ufb01", "fi", "FI", "Alice", "ALICE", "\u0131", "i", "I", "\u200b", "\u00a0", "\u2028",
		"../etc/passwd", "*", "?", "[a]", `\`, `"`, "'", "sl:a:a", "0", "00", "1", "-1", "+1", "1.0", "nil", "null",
		strings.Repeat("k", 199), strings.Repeat("k", 200), strings.Repeat("k", 201), strings.Repeat("k", 250), strings.Repeat("k", 251),
		strings.Repeat("k", 300), strings.Repeat("k", 300) + "1", "1" + strings.Repeat("k", 300),
		strings.Repeat("\x00", 66), strings.Repeat("\x00", 67), strings.Repeat("\x00", 68), strings.Repeat("é", 100), strings.Repeat("é", 101),
		long, long[1:], long[1:] + "l", "l" + long[1:],
	}
}

func testKeys(t *testing.T, s *subject) {
	keys := hardKeys()
	if sorted := slices.Sorted(slices.Values(keys)); len(slices.Compact(sorted)) != len(keys) {
		t.Fatal("two hard keys are the same")
	}
	limits := []limit.Limit{limit.Fixed(1+s.withheld, time.Hour)}
	policies := []*limit.Policy{
		{Limits: limits}, {Name: "a", Limits: limits}, {Name: "b", Limits: limits}, {Name: "a-b", Limits: limits}, {Name: "alice", Limits: limits},
	}
	for round, admit := range []bool{true, false} {
		for _, p := range policies {
			for _, key := range keys {
				if v := s.take(t, backend.Request{Key: key, Policy: p, Cost: 1}); v.Allowed != admit && (admit || s.withheld == 0) {
					t.Errorf("round %d: policy %q, key %.20q of %d bytes: allowed %t", round, p.Name, key, len(key), v.Allowed)
				}
			}
		}
	}
	if _, ok := s.Backend.(backend.Resetter); !ok {
		return
	}
	for i, key := range keys { // and no key's reset touches another
		if i%2 == 0 {
			if err := s.reset(backend.Request{Key: key, Policy: policies[1]}); err != nil {
				t.Errorf("Reset of key %.20q: %v", key, err)
			}
		}
	}
	for i, key := range keys {
		if v := s.take(t, backend.Request{Key: key, Policy: policies[1], Cost: 1}); v.Allowed != (i%2 == 0) && s.withheld == 0 {
			t.Errorf("key %.20q after a reset of every other key: allowed %t", key, v.Allowed)
		}
	}
}

// workers is how many callers there are at once; it is more than backends have connections or shards.
const workers = 64

// testConcurrent: of many callers at once exactly as many are admitted as the limit holds, and each sees its own
// share of what remains.
func testConcurrent(t *testing.T, s *subject) {
	const max = 1000
	for _, l := range everyAlgorithm(max, time.Hour) {
		for _, cost := range []int64{1, 7} {
			t.Run(fmt.Sprintf("%s/%d", l.name, cost), func(t *testing.T) {
				s.clock.set(10 * time.Minute)
				policy := &limit.Policy{
					Name:   fmt.Sprintf("%s-%d", l.name, cost),
					Limits: []limit.Limit{l.Limit, limit.Fixed(2*max, 24*time.Hour)},
				}
				var admitted atomic.Int64
				var mu sync.Mutex
				left := make(map[int64]int)
				var wg sync.WaitGroup
				for range workers {
					wg.Go(func() {
						for {
							result, err := s.try(backend.Request{Key: "alice", Policy: policy, Cost: cost})
							if err != nil {
								t.Errorf("Take: %v", err)
								return
							}
							if result.Guarantee > s.weakest {
								t.Errorf("%s because of %v", result.Guarantee, result.Cause)
							}
							if !result.Allowed {
								return
							}
							admitted.Add(cost)
							for status := range result.All() {
								mu.Lock()
								left[status.Remaining]++
								mu.Unlock()
								break
							}
						}
					})
				}
				wg.Wait()
				want := int64(max) / cost * cost
				if got := admitted.Load(); got > s.most(l.Limit)/cost*cost || got < want-s.withheld {
					t.Errorf("admitted %d of %d", got, want)
				}
				for i := range want / cost {
					if remaining := max - (i+1)*cost; left[remaining] != 1 && s.withheld == 0 && s.owed == nil {
						t.Errorf("%d takes report that %d remain, want 1", left[remaining], remaining)
					}
				}
			})
		}
	}
}

// testConcurrentRefund: what callers hold and have not given back is never more at once than the limit.
func testConcurrentRefund(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Refunder); !ok {
		return
	}
	const most = 5
	s.eachAlgorithm(t, most, func(t *testing.T, m *mirror) {
		var held, admitted atomic.Int64
		var wg sync.WaitGroup
		for range workers / 4 {
			wg.Go(func() {
				var receipts []state.Receipt
				for tries := range 40 {
					result, err := s.try(m.request(1, nil))
					switch {
					case err != nil:
						t.Errorf("Take: %v", err)
						return
					case result.Allowed:
						admitted.Add(1)
						receipts = append(receipts, result.Receipt())
						if n := held.Add(1); n > s.most(m.policy.Limits[0]) {
							t.Errorf("%d charges are held at once, of %d", n, most)
						}
					}
					if len(receipts) > 0 && (!result.Allowed || len(receipts) == 2 || tries == 39) {
						held.Add(-1) // before the refund: it may count at once
						if err := s.refund(m.request(1, nil), receipts[0], 1); err != nil {
							t.Errorf("Refund: %v", err)
							return
						}
						receipts = receipts[1:]
					}
				}
			})
		}
		wg.Wait()
		if admitted.Load() < most-s.withheld {
			t.Errorf("only %d admitted", admitted.Load())
		}
	})
}

// calls makes every call that the backend has.
func (s *subject) calls(req backend.Request, receipt state.Receipt, each func(op string, err error)) {
	ctx := context.Background()
	_, err := s.Take(ctx, req)
	each("Take", err)
	if p, ok := s.Backend.(backend.Peeker); ok {
		_, err := p.Peek(ctx, req)
		each("Peek", err)
	}
	if r, ok := s.Backend.(backend.Refunder); ok {
		each("Refund", r.Refund(ctx, req, receipt, 1))
	}
	if c, ok := s.Backend.(backend.Charger); ok {
		_, err := c.Charge(ctx, req, receipt.Mark())
		each("Charge", err)
	}
	if r, ok := s.Backend.(backend.Resetter); ok {
		each("Reset", r.Reset(ctx, req))
	}
	if g, ok := s.Backend.(backend.Granter); ok {
		each("Grant", g.Grant(ctx, req, 1))
	}
	if l, ok := s.Backend.(backend.Loader); ok {
		_, err := l.Load(ctx, req)
		each("Load", err)
	}
	if l, ok := s.Backend.(backend.Seeder); ok {
		each("Seed", l.Seed(ctx, req, state.State{}))
	}
	if l, ok := s.Backend.(backend.Sealer); ok {
		sealed := req
		sealed.Move = state.Move{Version: 1, TTL: time.Minute}
		_, err := l.Seal(ctx, sealed)
		each("Seal", err)
	}
	if p, ok := s.Backend.(backend.Pinger); ok {
		each("Ping", p.Ping(ctx))
	}
	if h, ok := s.Backend.(control.Heartbeater); ok {
		_, err := h.Heartbeat(ctx)
		each("Heartbeat", err)
	}
}

func testClosed(t *testing.T, s *subject) {
	m := s.mirror("alice", limit.Fixed(5, time.Hour))
	receipt := m.charge(t, 1)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		s.calls(m.request(1, nil), receipt, func(op string, err error) {
			if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("%s after Close: %v, want ErrClosed", op, err)
			}
		})
	}
}

// testCloseAtWork: Close comes while others call. They get a verdict, ErrClosed, or a typed error, and they return.
func testCloseAtWork(t *testing.T, s *subject) {
	m := s.mirror("alice", limit.Fixed(1<<40, time.Hour))
	m.take(t, 1)
	var wg sync.WaitGroup
	var taken, closed atomic.Int64
	for range workers / 4 {
		wg.Go(func() {
			for {
				_, err := s.try(m.request(1, nil))
				var failed *backend.Error
				switch {
				case errors.Is(err, backend.ErrClosed):
					closed.Add(1)
					return
				case err == nil:
					taken.Add(1)
				case !errors.As(err, &failed):
					t.Errorf("Take during Close: %v", err)
					return
				}
			}
		})
	}
	for taken.Load() < 100 {
		if _, err := s.try(m.request(1, nil)); err != nil {
			t.Fatalf("Take: %v", err)
		}
	}
	for range 3 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
	if closed.Load() != workers/4 {
		t.Errorf("%d of %d callers met the end", closed.Load(), workers/4)
	}
}
