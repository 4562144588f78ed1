package envoylimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/internal/testtier"
)

// TestModel plays random requests, one after the other, and compares every status with a model: a count for each descriptor,
// charged all or none.
func TestModel(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		steps := 400
		if testtier.Long() {
			steps = 10_000
		}
		text, most := "domain: web\ndescriptors:\n", map[string]int{"a": 7, "b": 20, "c": 50, "s": 9}
		for _, key := range []string{"a", "b", "c", "s"} {
			text += fmt.Sprintf("  - {key: %s, shadow_mode: %t, rate_limit: {unit: day, requests_per_unit: %d}}\n", key, key == "s", most[key])
		}
		c, _ := open(t, b, text, envoylimit.Config{})
		used := make(map[string]int)
		r := rand.New(rand.NewPCG(3, 4))
		for step := range steps {
			var ds []*ratelimit.RateLimitDescriptor
			var names []string
			var costs []int
			refunds := false
			for range 1 + r.IntN(4) {
				key := []string{"a", "b", "c", "s"}[r.IntN(4)]
				name, cost := fmt.Sprintf("%s=%d", key, r.IntN(2)), r.IntN(6)
				if r.IntN(4) == 0 {
					refunds, cost = true, -cost
					ds = append(ds, desc(name, giveBack(uint64(-cost))))
				} else {
					ds = append(ds, desc(name, hits(uint64(cost))))
				}
				names, costs = append(names, name), append(costs, cost)
			}
			if refunds && twice(names) {
				continue // refunds of a request run at once, and their statuses depend on the order
			}
			if shadowed := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name[0] != 's' }); twice(shadowed) {
				continue // what a shadow doesn't hold together it doesn't count at all
			}
			res := c.ask(ds...)
			// The model.
			for i, name := range names {
				if costs[i] < 0 {
					used[name] = max(0, used[name]+costs[i])
				}
			}
			next, denied := make(map[string]int), false
			for i, name := range names {
				left := most[name[:1]] - used[name] - next[name]
				if name[0] != 's' && (costs[i] > left || costs[i] == 0 && !ds[i].GetIsNegativeHits() && most[name[:1]] == used[name]) {
					denied = true
				}
				next[name] += max(0, costs[i])
			}
			if got := res.GetOverallCode() == over; got != denied {
				t.Fatalf("step %d: %v of %v, used %v: %v", step, costs, names, used, res)
			}
			if !denied {
				for i, name := range names {
					if fits := used[name]+costs[i] <= most[name[:1]]; costs[i] > 0 && fits {
						used[name] += costs[i]
					}
				}
			}
			for _, name := range names {
				if left := c.left(name); left != most[name[:1]]-used[name] {
					t.Fatalf("step %d: %v of %v (denied: %t): %d of %s left; want %d", step, costs, names, denied, left, name, most[name[:1]]-used[name])
				}
			}
		}
	})
}

func twice(names []string) bool {
	for i, name := range names {
		for _, other := range names[:i] {
			if other == name {
				return true
			}
		}
	}
	return false
}

// 64 callers are admitted exactly what there is, whatever else their requests ask for.
func TestCallersAtOnce(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, s := open(t, b, `
domain: web
descriptors:
  - {key: key, rate_limit: {unit: day, requests_per_unit: 300}}
  - {key: full, rate_limit: {unit: day, requests_per_unit: 0}}
`, envoylimit.Config{})
		var admitted atomic.Int64
		var all sync.WaitGroup
		for caller := range 64 {
			all.Go(func() {
				for i := range 8 {
					ds := []*ratelimit.RateLimitDescriptor{desc("key=a")}
					if i%2 == 1 {
						ds = append(ds, desc(fmt.Sprintf("key=own%d", caller)))
					}
					if c.ask(ds...).GetOverallCode() == isOK {
						admitted.Add(1)
					}
				}
			})
		}
		all.Wait()
		if n, left := admitted.Load(), c.left("key=a"); n != 300 || left != 0 {
			t.Errorf("%d admitted, %d left", n, left)
		}
		if n := s.Stats(); n.Failed > 0 || n.UnderWay != 0 {
			t.Errorf("%+v", n)
		}
	})
}

// Refunds of several callers at once never make room for more than was charged.
func TestRefundsAtOnce(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, _ := open(t, b, "domain: web\ndescriptors: [{key: key, rate_limit: {unit: day, requests_per_unit: 100}}]", envoylimit.Config{})
		want(t, c.ask(desc("key=a", hits(90))), isOK, "OK 10")
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() { c.ask(desc("key=a", giveBack(20))) })
		}
		all.Wait()
		want(t, c.ask(desc("key=a", hits(100))), isOK, "OK 0")
		want(t, c.ask(desc("key=a")), over, "OVER_LIMIT 0")
	})
}

// A reload changes limits at once, keeps what has been used, and fails no request: over all of it a day admits what the last file
// allows.
func TestReloadUnderLoad(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		file := func(most int, extra string) string {
			return fmt.Sprintf("domain: web\n%sdescriptors: [{key: key, rate_limit: {unit: day, requests_per_unit: %d}}]", extra, most)
		}
		c, s := open(t, b, file(100, ""), envoylimit.Config{})
		var admitted atomic.Int64
		var all sync.WaitGroup
		stop := make(chan struct{})
		for range 8 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if c.ask(desc("key=a")).GetOverallCode() == isOK {
						admitted.Add(1)
					}
				}
			})
		}
		for i := range 30 { // more and more, by another rule each time, with leases and without
			text := file(100+10*(i+1), []string{"", "sluice: {lease: {processes: 1, life: 50ms}}\n", "sluice: {lease: {processes: 2}}\n"}[i%3])
			if i%2 == 0 {
				text = strings.Replace(text, "key: key", "key: key, value: a", 1)
			}
			if err := s.SetRules(parse(t, text)); err != nil {
				t.Error(err)
			}
			time.Sleep(5 * time.Millisecond) // under load, not for it
		}
		if err := s.SetRules(parse(t, file(400, ""))); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(30 * time.Second); admitted.Load() < 400 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond) // until leases are given back
		}
		close(stop)
		all.Wait()
		if n := admitted.Load(); n != 400 {
			t.Errorf("%d admitted", n)
		}
		if n := s.Stats(); n.Failed > 0 {
			t.Errorf("%+v", n)
		}
	})
}
