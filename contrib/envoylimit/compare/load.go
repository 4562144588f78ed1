package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// limits are read by both servers as they are.
const limits = `
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100000000}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 100000000}
  - key: hot
    rate_limit: {unit: day, requests_per_unit: 200}
  - key: shared
    rate_limit: {unit: day, requests_per_unit: 100000000}
`

// workload is what the callers ask for.
type workload struct {
	name string
	ask  func(r *rand.Rand, round int) []*ratelimit.RateLimitDescriptor
	most int64 // of a workload that exhausts one key
	// shared is the other key of requests that are denied, whose charge is looked at; zero: the key itself.
	shared bool
}

const population = 10_000

var workloads = []workload{
	{name: "one descriptor", ask: func(r *rand.Rand, _ int) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("user", r.IntN(population))}
	}},
	{name: "two descriptors", ask: func(r *rand.Rand, _ int) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("user", r.IntN(population)), desc("tenant", r.IntN(100))}
	}},
	{name: "one, over its limit", most: 200, ask: func(_ *rand.Rand, round int) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("hot", 2*round)}
	}},
	{name: "two, one over its limit", most: 200, shared: true, ask: func(_ *rand.Rand, round int) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("shared", round), desc("hot", 2*round+1)}
	}},
}

func desc(key string, value int) *ratelimit.RateLimitDescriptor {
	return &ratelimit.RateLimitDescriptor{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprint(value)}}}
}

// result is what one contender did under one workload, round by round; times are in ms, processor times in us.
type result struct {
	rate, p50, p99, commands, redisCPU, serviceCPU []float64
	over, denied                                   []int64
}

// measure measures one contender under one workload. Each round exhausts a key of its own.
func measure(ctx context.Context, c *contender, d *database, o *options, w *workload, round int, r *result) error {
	// Connections and scripts are there before the clock runs. What is admitted meanwhile counts, too.
	_, warm, err := load(ctx, c.clients, o.callers, o.slice/10, w, round)
	if err != nil {
		return err
	}
	if err := d.Admin.ConfigResetStat(ctx).Err(); err != nil {
		return err
	}
	commandsBefore, redisBefore, err := d.usage(ctx)
	if err != nil {
		return err
	}
	serviceBefore, err := c.service.cpu()
	if err != nil {
		return err
	}
	times, admitted, err := load(ctx, c.clients, o.callers, o.slice, w, round)
	if err != nil {
		return err
	}
	commands, redisCPU, err := d.usage(ctx)
	if err != nil {
		return err
	}
	serviceCPU, err := c.service.cpu()
	if err != nil {
		return err
	}
	slices.Sort(times)
	n := float64(len(times))
	ms := func(q float64) float64 { return float64(times[int(q*(n-1))]) / float64(time.Millisecond) }
	us := func(spent time.Duration) float64 { return float64(spent) / n / float64(time.Microsecond) }
	r.rate, r.p50, r.p99 = append(r.rate, n/o.slice.Seconds()), append(r.p50, ms(.5)), append(r.p99, ms(.99))
	r.commands = append(r.commands, float64(commands-commandsBefore)/n)
	r.redisCPU, r.serviceCPU = append(r.redisCPU, us(redisCPU-redisBefore)), append(r.serviceCPU, us(serviceCPU-serviceBefore))
	if w.most == 0 {
		return nil
	}
	r.over = append(r.over, max(0, warm+admitted-w.most))
	denied, err := chargedByDenied(ctx, c.clients[0], w, round)
	r.denied = append(r.denied, denied)
	return err
}

// load calls for a time and returns how long each call took, and how many were admitted.
func load(ctx context.Context, clients []pb.RateLimitServiceClient, callers int, slice time.Duration, w *workload, round int) ([]time.Duration, int64, error) {
	var mu sync.Mutex // guards all and failed
	var all []time.Duration
	var failed error
	var admitted atomic.Int64
	var running sync.WaitGroup
	end := time.Now().Add(slice)
	for i := range callers {
		running.Go(func() {
			random, client := rand.New(rand.NewPCG(uint64(i), 7)), clients[i%len(clients)]
			var own []time.Duration
			for start := time.Now(); start.Before(end) && ctx.Err() == nil; {
				res, err := client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", Descriptors: w.ask(random, round)})
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				if res.GetOverallCode() == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
				now := time.Now()
				own = append(own, now.Sub(start))
				start = now
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	running.Wait()
	if failed == nil && len(all) == 0 {
		failed = context.Cause(ctx)
	}
	return all, admitted.Load(), failed
}

// chargedByDenied is what 100 denied requests take from a limit: of the key that denies where it is alone, otherwise of the other.
func chargedByDenied(ctx context.Context, client pb.RateLimitServiceClient, w *workload, round int) (int64, error) {
	left := func() (int64, error) {
		d := desc("shared", round)
		if !w.shared {
			// The key itself, with another limit: what is left of it shows what it was charged.
			d = desc("hot", 2*round)
			d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1 << 31, Unit: 4} // a day
		}
		res, err := client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{d}})
		if err != nil {
			return 0, err
		}
		return int64(res.GetStatuses()[0].GetLimitRemaining()), nil
	}
	random := rand.New(rand.NewPCG(1, 2))
	denied := func() (bool, error) {
		res, err := client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", Descriptors: w.ask(random, round)})
		return res.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT, err
	}
	for over := false; !over; { // a short slice may have left some
		var err error
		if over, err = denied(); err != nil {
			return 0, err
		}
	}
	before, err := left()
	if err != nil {
		return 0, err
	}
	for range 100 {
		if over, err := denied(); err != nil || !over {
			return 0, errors.Join(err, errors.New("a request beyond the limit is admitted"))
		}
	}
	after, err := left()
	return before - after - 1, err // the second look costs 1
}
