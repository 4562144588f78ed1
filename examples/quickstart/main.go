// Command quickstart shows a timeline of decisions: two users under three requests a second and ten in any five
// seconds. It counts in memory and ends by itself; with a topology it counts on Redis.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -topology examples/topology.json
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

func main() {
	log.SetFlags(0)
	topology := flag.String("topology", "", "a topology `file`: count on its Redis groups instead of in memory")
	flag.Parse()

	counts, where, err := open(*topology)
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	if err := run(context.Background(), counts, where); err != nil {
		log.Fatal(err)
	}
}

// open returns what counts, and how to name the place where a key is counted.
func open(file string) (counts backend.Backend, where func(key string) string, err error) {
	if file == "" {
		mem, err := memory.New(memory.Config{})
		return mem, func(string) string { return "memory" }, err
	}
	topology, err := router.LoadTopology(file)
	if err != nil {
		return nil, nil, err
	}
	redisbackend.LogTo(slog.Default()) // which the Throttler logs to, too
	groups, err := router.Open(topology, router.Config{})
	if err != nil {
		return nil, nil, err
	}
	if err := groups.Ping(context.Background()); err != nil {
		groups.Close()
		return nil, nil, fmt.Errorf("%w\nare the servers of %s up? try: make up", err, file)
	}
	return groups, func(key string) string { return "group " + groups.Owner(key) }, nil
}

// user is a client who asks again and again.
type user struct {
	key   string
	every time.Duration
}

func run(ctx context.Context, counts backend.Backend, where func(string) string) error {
	policy := limit.Policy{Name: "quickstart", Limits: []limit.Limit{
		limit.PerSecond(3),
		limit.Sliding(10, 5*time.Second, time.Second),
	}}
	t, err := throttler.New(throttler.Config{Backend: counts, Policy: policy})
	if err != nil {
		return err
	}
	defer t.Close()

	users := []user{{"alice", 200 * time.Millisecond}, {"bob", 700 * time.Millisecond}}
	fmt.Printf("policy %s: %s and %s\n", policy.Name, policy.Limits[0], policy.Limits[1])
	for _, u := range users {
		if err := t.Reset(ctx, u.key); err != nil { // an earlier run may have left counts
			return err
		}
		fmt.Printf("%s asks every %s and is counted in %s\n", u.key, u.every, where(u.key))
	}
	fmt.Printf("\n%6s  %-5s  %-7s  %-16s  %-7s  %-6s  %s\n",
		"time", "user", "", "left of limit", "reset", "retry", "decided by")

	const total = 6 * time.Second
	start, next := time.Now(), make([]time.Duration, len(users))
	for {
		i := 0 // whose turn it is
		for j := range users {
			if next[j] < next[i] {
				i = j
			}
		}
		if next[i] >= total {
			break
		}
		time.Sleep(time.Until(start.Add(next[i])))
		next[i] += users[i].every

		decision, err := t.Allow(ctx, users[i].key)
		if err != nil {
			return err
		}
		show(time.Since(start), users[i].key, decision)
	}
	for _, u := range users {
		used, err := t.Usage(ctx, u.key, 5*time.Second)
		if err != nil {
			return err
		}
		fmt.Printf("\n%s used %d in the last 5 seconds", u.key, used)
	}
	fmt.Println()
	return nil
}

func show(at time.Duration, key string, d throttler.Decision) {
	verdict, retry := "allowed", ""
	if !d.Allowed {
		verdict, retry = "DENIED", seconds(d.RetryAfter)
	}
	quota := int(d.Limit.Quota())
	left := min(int(d.Remaining), quota)
	fmt.Printf("%6s  %-5s  %-7s  %-16s  %-7s  %-6s  %s, %s\n", seconds(at), key, verdict,
		strings.Repeat("●", left)+strings.Repeat("○", quota-left)+strings.Repeat(" ", max(0, 10-quota))+" "+d.Limit.String(),
		seconds(d.ResetAt.Sub(d.At)), retry, d.Source, d.Guarantee)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
