package backend_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// say is a verdict in short: "ok" or "no", and for each limit what is left @ when it is full again, counted from
// start, and + how long the request has to wait.
func say(v *state.Verdict) string {
	text := "no"
	if v.Allowed {
		text = "ok"
	}
	for s := range v.All() {
		text += fmt.Sprintf(" %d@%s", s.Remaining, s.ResetAt.Sub(start))
		if s.RetryAfter > 0 {
			text += "+" + s.RetryAfter.String()
		}
	}
	return text
}

// onlyTakes is a backend without optional operations.
type onlyTakes struct{ backend.Backend }

// constant is a flag that never changes.
func constant(useNew bool) func(string) (bool, uint64) {
	return func(string) (bool, uint64) { return useNew, 0 }
}

func newDual(t testing.TB, cfg backend.DualConfig) *backend.Dual {
	t.Helper()
	d, err := backend.NewDual(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func hour(max int64) *limit.Policy {
	return &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(max, time.Hour)}}
}

// warm makes the key one that is in use.
func warm(t *testing.T, b backend.Backend, p *limit.Policy) {
	t.Helper()
	if r, err := b.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1}); err != nil || !r.Allowed {
		t.Fatalf("allowed %t, %v", r.Allowed, err)
	}
}

func newLease(t testing.TB, inner backend.Backend, cfg backend.LeaseConfig) *backend.Lease {
	t.Helper()
	l, err := backend.NewLease(inner, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func openMemcached(t testing.TB, cfg backend.MemcachedConfig, servers ...string) *backend.Memcached {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	m, err := backend.NewMemcached(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// memcachedStat is one number of a server's statistics.
func memcachedStat(t testing.TB, addr, name string) int64 {
	t.Helper()
	for _, line := range askMemcached(t, addr, "stats") {
		if rest, ok := strings.CutPrefix(line, "STAT "+name+" "); ok {
			n, err := strconv.ParseInt(rest, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no statistic is named %s", name)
	return 0
}

// memcachedItems is how long each item has to live, in seconds and by name; -1 for ever.
func memcachedItems(t testing.TB, addr string) map[string]int64 {
	t.Helper()
	items := make(map[string]int64)
	await(t, "a listing of all items", func() bool { // one on its way from list to list is missing
		clear(items)
		for _, line := range askMemcached(t, addr, "lru_crawler metadump all") {
			escaped, ok := strings.CutPrefix(strings.Fields(line)[0], "key=")
			if !ok {
				continue
			}
			name, err := url.PathUnescape(escaped)
			if err != nil {
				t.Fatal(err)
			}
			items[name] = memcachedTTL(t, addr, name)
		}
		return int64(len(items)) == memcachedStat(t, addr, "curr_items")
	})
	return items
}

// memcachedUsed is what is stored of one of hourly's keys, past the backend.
func memcachedUsed(t testing.TB, addr, key string) int64 {
	t.Helper()
	lines := askMemcached(t, addr, "get "+stored(key))
	if len(lines) != 3 {
		return 0
	}
	st, err := state.ParseState(lines[1])
	if err != nil {
		t.Fatal(err)
	}
	v := st.Peek(hourly, state.At{Micros: time.Now().UnixMicro()}, 1)
	return hourly.Limits[0].Max - v.Binding().Remaining
}

// start is on a whole hour, so that aligned windows and sub-buckets start with a test.
var start = time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)

// clock is a test's own: it stands still unless it is set.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.set(0)
	return c
}

func (c *clock) Now() time.Time { return time.UnixMicro(c.micros.Load()) }

func (c *clock) set(after time.Duration) { c.micros.Store(start.Add(after).UnixMicro()) }

func (c *clock) step(d time.Duration) { c.micros.Add(d.Microseconds()) }

func newMemory(t testing.TB, cfg backend.MemoryConfig) *backend.Memory {
	t.Helper()
	m, err := backend.NewMemory(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mustTake(t testing.TB, b backend.Backend, req backend.Request) backend.Result {
	t.Helper()
	result, err := b.Take(context.Background(), req)
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	return result
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// patient is the timeout where nothing is to time out: a loaded machine under the race detector.
const patient = 30 * time.Second

// secret is a key that no error may name.
const secret = "secret-7f3a"

// newPrefix lets tests share a server.
func newPrefix() string { return fmt.Sprintf("t%d:", prefixes.Add(1)) }

func openRedis(t testing.TB, addr string, cfg backend.RedisConfig) *backend.Redis {
	t.Helper()
	return openRedisWith(t, &redis.Options{Addr: addr}, cfg)
}

func openRedisWith(t testing.TB, opts *redis.Options, cfg backend.RedisConfig) *backend.Redis {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	b, err := backend.OpenRedis(opts, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

var hourly = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1_000_000, time.Hour)}}

func request(key string) backend.Request {
	return backend.Request{Key: key, Policy: hourly, Cost: 1}
}

// stored is where hourly's counts of a key are.
func stored(key string) string { return "sl:p:" + key }

// used is what is stored of a key, past the backend.
func used(t testing.TB, server *testserver.Server, key string) int64 {
	t.Helper()
	text, err := server.Client().Get(t.Context(), stored(key)).Result()
	if errors.Is(err, redis.Nil) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	st, err := state.ParseState(text)
	if err != nil {
		t.Fatal(err)
	}
	now := server.Client().Time(t.Context()).Val()
	v := st.Peek(hourly, state.At{Micros: now.UnixMicro()}, 1)
	return hourly.Limits[0].Max - v.Binding().Remaining
}

// wantError checks an error's type, and that it doesn't name the key.
func wantError(t testing.TB, err error, kind backend.Kind, mayHaveCharged bool) {
	t.Helper()
	var failed *backend.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got %v, want a *backend.Error", err)
	}
	if failed.Kind != kind || failed.MayHaveCharged != mayHaveCharged {
		t.Errorf("got %v, want %s, may have charged: %t", err, kind, mayHaveCharged)
	}
	if failed.Op == "" || failed.Node == "" {
		t.Errorf("%v names no call or no node", err)
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error names the key: %v", err)
	}
}

// receipt is one for hourly that no server has seen.
func receipt(t testing.TB) state.Receipt {
	t.Helper()
	var s state.State
	v := s.Take(hourly, state.At{Micros: time.Now().UnixMicro()}, 1)
	return v.Receipt()
}

// await polls until it is so.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for begin := time.Now(); !so(); {
		if time.Since(begin) > patient {
			t.Fatalf("waited %s for %s", patient, what)
		}
		time.Sleep(time.Millisecond) // a poll leaves the processor to what it waits for
	}
}

// askMemcached sends a command and returns the answer, a line each.
func askMemcached(t testing.TB, addr, command string) []string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patient)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patient))
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		t.Fatal(err)
	}
	var lines []string
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		lines = append(lines, in.Text())
		switch word, _, _ := strings.Cut(in.Text(), " "); word {
		case "END", "EN", "HD", "OK", "STORED", "DELETED", "NOT_FOUND", "VERSION", "BUSY":
			return lines
		case "ERROR", "CLIENT_ERROR", "SERVER_ERROR":
			t.Fatalf("%.60q: %s", command, in.Text())
		}
	}
	t.Fatalf("%.60q: the answer ends with %q", command, lines)
	return nil
}

// memcachedTTL is how long an item has to live, in seconds; -1 for ever, -2 if there is none.
func memcachedTTL(t testing.TB, addr, name string) int64 {
	t.Helper()
	answer := askMemcached(t, addr, "mg "+name+" t")[0]
	if answer == "EN" {
		return -2
	}
	seconds, err := strconv.ParseInt(strings.TrimPrefix(answer, "HD t"), 10, 64)
	if err != nil {
		t.Fatalf("meta get: %q", answer)
	}
	return seconds
}

var prefixes atomic.Int64
