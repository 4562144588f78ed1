package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
    rate_limit: {unit: day, requests_per_unit: 1000}
  - key: shared
    rate_limit: {unit: day, requests_per_unit: 100000000}
`

// workload is what the callers ask for.
type workload struct {
	name string
	ask  func(*rand.Rand) []*ratelimit.RateLimitDescriptor
	most int64 // of a workload that exhausts one key
	// shared is the other key of requests that are denied, whose charge is looked at; zero: the key itself.
	shared bool
}

const population = 10_000

var workloads = []workload{
	{name: "one descriptor", ask: func(r *rand.Rand) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("user", r.IntN(population))}
	}},
	{name: "two descriptors", ask: func(r *rand.Rand) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("user", r.IntN(population)), desc("tenant", r.IntN(100))}
	}},
	{name: "one, over its limit", most: 1000, ask: func(*rand.Rand) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("hot", 1)}
	}},
	{name: "two, one over its limit", most: 1000, shared: true, ask: func(*rand.Rand) []*ratelimit.RateLimitDescriptor {
		return []*ratelimit.RateLimitDescriptor{desc("shared", 1), desc("hot", 2)}
	}},
}

func desc(key string, value int) *ratelimit.RateLimitDescriptor {
	return &ratelimit.RateLimitDescriptor{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprint(value)}}}
}

// result is what one contender did under one workload, round by round.
type result struct {
	contender, workload                            string
	rate, p50, p99, commands, redisCPU, serviceCPU []float64 // times in ms and us
	over, denied                                   []int64
}

// measureAll measures one contender under all workloads, on an empty database.
func measureAll(ctx context.Context, c contender, d *database, o *options, dir string, results []*result) error {
	if err := d.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	service, err := startService(ctx, c, d, dir)
	if err != nil {
		return err
	}
	defer service.stop()
	var clients []pb.RateLimitServiceClient
	for range 8 {
		conn, err := grpc.NewClient(service.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		clients = append(clients, pb.NewRateLimitServiceClient(conn))
	}
	for _, w := range workloads {
		i := slices.IndexFunc(results, func(r *result) bool { return r.contender == c.name && r.workload == w.name })
		if err := measure(ctx, clients, service, d, o, &w, results[i]); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

func measure(ctx context.Context, clients []pb.RateLimitServiceClient, service *child, d *database, o *options, w *workload, r *result) error {
	// Connections and scripts are there before the clock runs. What is admitted meanwhile counts, too.
	_, warm, err := load(ctx, clients, o.callers, o.slice/10, w)
	if err != nil {
		return err
	}
	if err := d.admin.ConfigResetStat(ctx).Err(); err != nil {
		return err
	}
	commandsBefore, redisBefore, err := d.usage(ctx)
	if err != nil {
		return err
	}
	serviceBefore, err := service.cpu()
	if err != nil {
		return err
	}
	times, admitted, err := load(ctx, clients, o.callers, o.slice, w)
	if err != nil {
		return err
	}
	commands, redisCPU, err := d.usage(ctx)
	if err != nil {
		return err
	}
	serviceCPU, err := service.cpu()
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
	denied, err := chargedByDenied(ctx, clients[0], w)
	r.denied = append(r.denied, denied)
	return err
}

// load calls for a time and returns how long each call took, and how many were admitted.
func load(ctx context.Context, clients []pb.RateLimitServiceClient, callers int, slice time.Duration, w *workload) ([]time.Duration, int64, error) {
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
				res, err := client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", Descriptors: w.ask(random)})
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
func chargedByDenied(ctx context.Context, client pb.RateLimitServiceClient, w *workload) (int64, error) {
	left := func() (int64, error) {
		d := desc("shared", 1)
		if !w.shared {
			// The key itself, with another limit: what is left of it shows what it was charged.
			d = desc("hot", 1)
			d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1 << 31, Unit: 4} // a day
		}
		res, err := client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{d}})
		if err != nil {
			return 0, err
		}
		return int64(res.GetStatuses()[0].GetLimitRemaining()), nil
	}
	before, err := left()
	if err != nil {
		return 0, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		res, err := client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", Descriptors: w.ask(random)})
		if err != nil {
			return 0, err
		}
		if res.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
			return 0, fmt.Errorf("a request beyond the limit is admitted")
		}
	}
	after, err := left()
	return before - after - 1, err // the second look costs 1
}
