// Command encoding measures what a take costs a Redis server under different encodings of a key's state: fields of
// a hash, a packed string, and text, each by a short script with the same checks; and the script that Sluice runs,
// which stores that text, takes any policy, and joins floors. It starts a redis-server of its own.
//
//	go run ./encoding
package main

import (
	"context"
	"embed"
	"fmt"
	"log"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisserver"
	"github.com/sluice-go/sluice/scripts"
)

//go:embed *.lua
var sources embed.FS

const (
	key    = "sl::user:123"
	max    = 1_000_000_000 // never reached: every take is admitted
	runs   = 7             // interleaved; the table holds medians
	takes  = 20_000        // in each run
	batch  = 100
	minute = 60_000_000 // us
)

// candidate is an encoding, with the arguments of a take at a moment in Unix microseconds.
type candidate struct {
	name, work, source string
	args               func(now int64) []any
}

func candidates() []candidate {
	one := func(now int64) []any { return []any{now, 1, max, now/1000 + 60_000} }
	three := func(now int64) []any {
		ms := now / 1000
		return []any{now, 1, "f1s", max, ms + 1000, "f1h", max, ms + 3_600_000, "s1h~1m", max, 60_000}
	}
	take1 := func(now int64) []any { return []any{now, 1, "", "f1m", max, now/1000 + 60_000} }
	take3 := func(now int64) []any {
		ms := now / 1000
		return []any{now, 1, "", "f1s", max, ms + 1000, "f1h", max, ms + 3_600_000,
			"s1h~1m", max, ms/60_000*60_000 + 3_600_000, 60_000, 60}
	}
	const oneFixed, mixed = "one fixed limit", "two fixed, one sliding of 60"
	return []candidate{
		{"hash", oneFixed, source("hash1.lua"), one},
		{"packed string", oneFixed, source("packed1.lua"), one},
		{"text", oneFixed, source("text1.lua"), one},
		{"take.lua", oneFixed, scripts.Take.Source, take1},
		{"hash", mixed, source("hash3.lua"), three},
		{"packed string", mixed, source("packed3.lua"), three},
		{"text", mixed, source("text3.lua"), three},
		{"take.lua", mixed, scripts.Take.Source, take3},
	}
}

func source(name string) string {
	text, err := sources.ReadFile(name)
	if err != nil {
		log.Fatal(err)
	}
	return string(text)
}

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	server, err := redisserver.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	client, stop := server.Admin, func() { _ = server.Stop() }
	defer stop()

	all := candidates()
	times, bytes := make([][]float64, len(all)), make([]int64, len(all))
	for range runs {
		for i, c := range all {
			micros, size, err := measure(ctx, client, c)
			if err != nil {
				stop()
				log.Fatalf("%s, %s: %v", c.name, c.work, err)
			}
			times[i], bytes[i] = append(times[i], micros), size
		}
	}
	fmt.Printf("%-30s %-15s %12s %12s\n", "work", "encoding", "us per take", "bytes")
	for i, c := range all {
		slices.Sort(times[i])
		fmt.Printf("%-30s %-15s %12.1f %12d\n", c.work, c.name, times[i][runs/2], bytes[i])
	}
}

// measure fills every sub-bucket of an hour, then takes within one minute, and returns the server's microseconds
// for each take and the bytes of the key.
func measure(ctx context.Context, client *redis.Client, c candidate) (micros float64, bytes int64, err error) {
	client.Del(ctx, key)
	sha, err := client.ScriptLoad(ctx, c.source).Result()
	if err != nil {
		return 0, 0, err
	}
	now := time.Now().UnixMicro() / minute * minute
	send := func(n int, at func(i int) int64) error {
		pipe := client.Pipeline()
		for i := range n {
			pipe.EvalSha(ctx, sha, []string{key}, c.args(at(i))...)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
	if err := send(600, func(i int) int64 { return now + int64(i/10-60)*minute }); err != nil {
		return 0, 0, err
	}
	client.ConfigResetStat(ctx)
	for done := 0; done < takes; done += batch {
		if err := send(batch, func(i int) int64 { return now + int64(done+i)*1000 }); err != nil {
			return 0, 0, err
		}
	}
	bytes, err = client.MemoryUsage(ctx, key).Result()
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.SplitSeq(client.Info(ctx, "commandstats").Val(), "\r\n") {
		if _, after, ok := strings.Cut(line, "cmdstat_evalsha:"); ok {
			_, after, _ = strings.Cut(after, "usec_per_call=")
			value, _, _ := strings.Cut(after, ",")
			micros, err = strconv.ParseFloat(value, 64)
		}
	}
	return micros, bytes, err
}
