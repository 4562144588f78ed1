//go:build unix

package memcached_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func isContended(err error) bool {
	var failed *backend.Error
	return errors.As(err, &failed) && failed.Kind == backend.Contended && !failed.MayHaveCharged
}

func TestMemcachedConformance(t *testing.T) {
	t.Parallel()
	servers := []string{testserver.Memcached(t).Addr, testserver.Memcached(t).Addr}
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		return backendtesting.OpenMemcached(t, memcached.Config{Prefix: backendtesting.NewPrefix(), Now: now}, servers...)
	},
		backendtest.Contends(),
		backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](),
		backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](), backendtest.Require[backend.Pinger](),
		backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](),
		backendtest.Require[control.Clock](),
	)
}

// TestMemcachedEviction: GitHub's post tells of counts whose related item, the reset, had been evicted. Here both
// limits go at once, whatever the moment, and one loss costs each at most one window.
func TestMemcachedEviction(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	c := backendtesting.NewClock()
	b := backendtesting.OpenMemcached(t, memcached.Config{Now: c.Now}, server.Addr)
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerSecond(10), limit.PerHour(240)}}
	for name, lost := range map[string]struct{ second, takes int }{
		"in a second":       {12, 5},
		"after its limit":   {12, 11},
		"at the hour's":     {23, 10},
		"beyond the hour's": {30, 3},
	} {
		t.Run(name, func(t *testing.T) {
			key := strings.ReplaceAll(name, " ", "-")
			req := backend.Request{Key: key, Policy: policy, Cost: 1}
			var mirror state.State // what one item holds, lost as a whole
			var inHour int64
			for second := range 60 {
				c.Set(time.Duration(second) * time.Second)
				var inSecond int64
				for take := range 12 {
					if second == lost.second && take == lost.takes {
						backendtesting.AskMemcached(t, server.Addr, "delete "+backendtesting.Stored(key))
						mirror = state.State{}
					}
					got := backendtesting.MustTake(t, b, req)
					want := mirror.Take(policy, state.At{Micros: c.Now().UnixMicro()}, 1)
					if backendtesting.Say(&got.Verdict) != backendtesting.Say(&want) {
						t.Fatalf("second %d, take %d: %s, want %s", second, take, backendtesting.Say(&got.Verdict), backendtesting.Say(&want))
					}
					if got.Allowed {
						inSecond, inHour = inSecond+1, inHour+1
					}
				}
				if inSecond > 10 && (second != lost.second || inSecond > 20) {
					t.Errorf("second %d admitted %d of 10", second, inSecond)
				}
			}
			if want := min(240, int64(lost.second*10+min(lost.takes, 10))) + 240; inHour != want {
				t.Errorf("the hour admitted %d, want %d: 240, and what was lost", inHour, want)
			}
			if ttl := backendtesting.MemcachedTTL(t, server.Addr, backendtesting.Stored(key)); ttl < 3000 || ttl > 3602 {
				t.Errorf("the item lives for %d s", ttl)
			}
		})
	}
	if n := backendtesting.MemcachedStat(t, server.Addr, "curr_items"); n != 4 {
		t.Errorf("4 keys of two limits are %d items", n)
	}
}

// TestMemcachedOneItem: whatever is done to a key, it is one item, and that has an end.
func TestMemcachedOneItem(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	c := backendtesting.NewClock()
	b := backendtesting.OpenMemcached(t, memcached.Config{Now: c.Now}, server.Addr)
	ctx := context.Background()
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{
		limit.PerSecond(3), limit.Sliding(5, time.Hour, time.Minute), limit.TokenBucket(1, time.Minute, 9), limit.PerDay(100).Staggered()}}
	req := backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: 2}
	check := func(what string, until int64) {
		t.Helper()
		items := backendtesting.MemcachedItems(t, server.Addr)
		want := (until - c.Now().UnixMicro()) / 1e6
		if ttl, ok := items[backendtesting.Stored(backendtesting.Secret)]; len(items) != 1 || !ok || ttl < want-5 || ttl > want+3 {
			t.Errorf("after %s the items and their seconds to live are %v; want one of %d", what, items, want)
		}
	}
	if err := b.Refund(ctx, req, backendtesting.Receipt(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := b.Reset(ctx, req); err != nil {
		t.Fatal(err)
	}
	if items := backendtesting.MemcachedItems(t, server.Addr); len(items) > 0 {
		t.Errorf("nothing was taken, and stored are %v", items)
	}
	first := backendtesting.MustTake(t, b, req)
	until := first.State.Until()
	check("a take", until)
	if r := backendtesting.MustTake(t, b, req); r.Allowed {
		t.Fatal("admitted 4 of 3")
	}
	check("a denial", until)
	c.Step(time.Second)
	if err := b.Refund(ctx, req, first.Receipt(), 1); err != nil {
		t.Fatal(err)
	}
	check("a refund", until)
	if err := b.Reset(ctx, req); err != nil {
		t.Fatal(err)
	}
	check("a reset", until)
	req.Floor = &first.State
	backendtesting.MustTake(t, b, req)
	check("a take with a floor", until)
	backendtesting.AskMemcached(t, server.Addr, "delete "+backendtesting.Stored(backendtesting.Secret))
	if err := b.Seed(ctx, req, first.State); err != nil {
		t.Fatal(err)
	}
	check("a seed", until)
	c.Set(48 * time.Hour)
	if err := b.Reset(ctx, req); err != nil {
		t.Fatal(err)
	}
	check("a reset when all is over", c.Now().UnixMicro())
}

// TestMemcachedMemoryFull: a server that is too small really evicts, while many callers take. The clock stands still,
// so the two limits count alike; a reply where they differ has seen one without the other.
func TestMemcachedMemoryFull(t *testing.T) {
	t.Parallel()
	// One class of items, of which a thousand fit, in the order of their writes.
	server := testserver.Memcached(t, "-m", "1", "-I", "512k", "-n", "1024", "-o", "no_lru_maintainer")
	c := backendtesting.NewClock()
	b := backendtesting.OpenMemcached(t, memcached.Config{Now: c.Now}, server.Addr)
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerSecond(10), limit.PerHour(240)}}
	req := backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: 1}
	fill := func(round int) {
		var fillers strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&fillers, "set filler-%d-%d 0 3600 1 noreply\r\nx\r\n", round, i)
		}
		backendtesting.AskMemcached(t, server.Addr, fillers.String()+"version")
	}
	const rounds, callers = 8, 4
	var mu sync.Mutex
	admitted := make(map[int64]int) // by how much was used then
	for round := range rounds {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for takes := 0; takes < 2+round; {
					r, err := b.Take(context.Background(), req)
					if isContended(err) {
						continue
					}
					takes++
					if err != nil {
						t.Error(err)
						return
					}
					var used []int64
					for s := range r.All() {
						used = append(used, s.Limit.Max-s.Remaining)
						if want := c.Now().Add(s.Limit.Window); !s.ResetAt.Equal(want) {
							t.Errorf("%s resets at %s, want %s", s.Limit, s.ResetAt, want)
						}
					}
					if used[0] != used[1] {
						t.Errorf("one limit counts %d, the other %d", used[0], used[1])
					}
					if r.Allowed {
						mu.Lock()
						admitted[used[0]]++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		fill(round)
		if ttl := backendtesting.MemcachedTTL(t, server.Addr, backendtesting.Stored(backendtesting.Secret)); ttl != -2 {
			t.Fatalf("round %d: the item is still there, for %d s", round, ttl)
		}
	}
	if n := backendtesting.MemcachedStat(t, server.Addr, "evictions"); n == 0 {
		t.Error("nothing was evicted")
	}
	total := 0
	for used, n := range admitted {
		if n > rounds {
			t.Errorf("%d windows admitted take %d, %d times", rounds, used, n)
		}
		total += n
	}
	if admitted[1] != rounds || total > 10*rounds {
		t.Errorf("%d windows began, %d takes of 10 each were admitted; want %d windows", admitted[1], total, rounds)
	}
}

// TestMemcachedContention: who repeats gets what is left, and not one more than there is.
func TestMemcachedContention(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	const callers, most = 64, 1000
	req := backend.Request{Key: backendtesting.Secret, Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(most)}}, Cost: 1}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				r, err := b.Take(context.Background(), req)
				switch {
				case isContended(err):
				case err != nil:
					t.Error(err)
					return
				case !r.Allowed:
					return
				default:
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != most {
		t.Errorf("admitted %d of %d", n, most)
	}
}

// TestMemcachedContended: a call that gave up charged nothing.
func TestMemcachedContended(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{Tries: 1}, server.Addr)
	const callers, takes = 64, 20
	var admitted, contended atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range takes {
				switch _, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); {
				case err == nil:
					admitted.Add(1)
				case isContended(err):
					contended.Add(1)
					backendtesting.WantError(t, err, backend.Contended, false)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if contended.Load() == 0 {
		t.Error("nobody met anybody")
	}
	if n := backendtesting.MemcachedUsed(t, server.Addr, backendtesting.Secret); n != admitted.Load() || n == 0 {
		t.Errorf("%d were admitted, %d counted", admitted.Load(), n)
	}
}

// TestMemcachedLongWindows: an expiration of more than 30 days is read as a Unix time, mostly one that is over.
func TestMemcachedLongWindows(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	for name, c := range map[string]struct {
		limit limit.Limit
		least time.Duration // until it is over
	}{
		"second":      {limit.PerSecond(3), time.Second},
		"minute":      {limit.PerMinute(3), time.Minute},
		"just under":  {limit.Fixed(3, 30*day-2*time.Second), 30*day - 2*time.Second},
		"30 days":     {limit.Fixed(3, 30*day), 30 * day},
		"just over":   {limit.Fixed(3, 30*day+time.Second), 30*day + time.Second},
		"60 days":     {limit.Fixed(3, 60*day), 60 * day},
		"sliding":     {limit.Sliding(3, 60*day, day), 59 * day},
		"slow bucket": {limit.TokenBucket(1, 60*day, 3), 60 * day},
		"8 years":     {limit.Fixed(3, 8*366*day), 8 * 366 * day},
	} {
		key := strings.ReplaceAll(name, " ", "-")
		req := backend.Request{Key: key, Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{c.limit}}, Cost: 1}
		for i := range int64(2) {
			r := backendtesting.MustTake(t, b, req)
			if i == 1 && c.least > time.Second && r.Binding().Remaining != 1 { // a second may be over by then
				t.Errorf("%s: the second take leaves %d, want 1", name, r.Binding().Remaining)
			}
			want := (r.State.Until() - r.Now) / 1e6
			if ttl := backendtesting.MemcachedTTL(t, server.Addr, backendtesting.Stored(key)); ttl < want-2 || ttl > want+4 || ttl+2 < int64(c.least.Seconds()) {
				t.Errorf("%s: the item lives for %d s, want about %d", name, ttl, want)
			}
		}
	}
}

// TestMemcachedEndOfTime: what Memcached has no time for is refused, before anything is sent.
func TestMemcachedEndOfTime(t *testing.T) {
	t.Parallel()
	proxy := newMemcachedProxy(t, testserver.Memcached(t).Addr)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, proxy.addr)
	beyond := time.Until(time.Unix(1<<31, 0)).Truncate(time.Hour) + 2*time.Hour
	for _, l := range []limit.Limit{
		limit.Fixed(1, beyond), limit.Sliding(1, beyond, time.Hour), limit.TokenBucket(1, beyond, 1), limit.TokenBucket(1, beyond/2, 2),
	} {
		policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(5), l}}
		_, err := b.Take(context.Background(), backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: 1})
		var refused *limit.Error
		if !errors.As(err, &refused) || strings.Contains(err.Error(), backendtesting.Secret) {
			t.Errorf("%s: got %v, want a *limit.Error", l, err)
		}
	}
	if n := proxy.conns.Load(); n > 0 {
		t.Errorf("%d connections were made", n)
	}
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	if n := proxy.conns.Load(); n == 0 {
		t.Error("the proxy counts no connections")
	}
}

// TestMemcachedPool: each key is at one server, the same for whoever names the servers, in whatever order.
func TestMemcachedPool(t *testing.T) {
	t.Parallel()
	servers := []string{testserver.Memcached(t).Addr, testserver.Memcached(t).Addr, testserver.Memcached(t).Addr}
	const keys = 300
	for i, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 0, 2}} {
		b := backendtesting.OpenMemcached(t, memcached.Config{}, servers[order[0]], servers[order[1]], servers[order[2]])
		for key := range keys {
			if r, want := backendtesting.MustTake(t, b, backendtesting.Request(strconv.Itoa(key))), 1_000_000-int64(i)-1; r.Binding().Remaining != want {
				t.Fatalf("instance %d: %d are left of key %d, want %d", i, r.Binding().Remaining, key, want)
			}
		}
		var total int64
		for _, server := range servers {
			n := backendtesting.MemcachedStat(t, server, "curr_items")
			if n < keys/6 {
				t.Errorf("instance %d: %d of %d keys are on %s", i, n, keys, server)
			}
			total += n
		}
		if total != keys {
			t.Errorf("instance %d: %d keys are %d items", i, keys, total)
		}
		if err := b.Ping(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestMemcachedUnixSocket needs a server of its own: one with a socket has no port.
func TestMemcachedUnixSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sluice") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "memcached")
	// The shell ends the server when its input ends, with Close or with the test binary.
	cmd := exec.Command("sh", "-c", `memcached -s "$0" "$@" <&- & read -r _; kill -9 $!; wait`, socket)
	if os.Getuid() == 0 {
		cmd.Args = append(cmd.Args, "-u", "root")
	}
	life, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = life.Close(); _ = cmd.Wait() })

	b := backendtesting.OpenMemcached(t, memcached.Config{}, socket)
	backendtesting.Await(t, "a server on "+socket, func() bool {
		return b.Ping(context.Background()) == nil
	})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	if r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)); r.Binding().Remaining != 1_000_000-2 {
		t.Errorf("2 takes leave %d", r.Binding().Remaining)
	}
	_ = life.Close()
	backendtesting.Await(t, "the end of the server", func() bool { return b.Ping(context.Background()) != nil })
	_, err = b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Unavailable, false)
}

func TestNewMemcachedRefuses(t *testing.T) {
	const a, b = "127.0.0.1:1", "127.0.0.1:2"
	for name, c := range map[string]struct {
		servers []string
		cfg     memcached.Config
		want    []string
	}{
		"no servers": {nil, memcached.Config{}, []string{"servers"}},
		"twice":      {[]string{a, b, a}, memcached.Config{}, []string{"servers[2]", a}},
		"nameless":   {[]string{a, ""}, memcached.Config{}, []string{"servers[1]"}},
		"no port":    {[]string{a, "localhost"}, memcached.Config{}, []string{"localhost"}},
		"prefix":     {[]string{a}, memcached.Config{Prefix: "with space"}, []string{"Prefix"}},
		"timeout":    {[]string{a}, memcached.Config{Timeout: -1}, []string{"Timeout"}},
		"tries":      {[]string{a}, memcached.Config{Tries: -1}, []string{"Tries"}},
		"idle":       {[]string{a}, memcached.Config{IdleConns: -1}, []string{"IdleConns"}},
		"all": {[]string{a, a, ""}, memcached.Config{Prefix: "\n", Timeout: -1, Tries: -1, IdleConns: -1},
			[]string{"servers[1]", "servers[2]", "Prefix", "Timeout", "Tries", "IdleConns"}},
	} {
		m, err := memcached.New(c.servers, c.cfg)
		var value *limit.Error
		if m != nil || !errors.As(err, &value) {
			t.Errorf("%s: got %v, %v; want a typed error", name, m, err)
			continue
		}
		for _, field := range c.want {
			if !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %q doesn't name %s", name, err, field)
			}
		}
	}
}

// TestMemcachedNames: the text protocol ends a name at a space and a command at a line's end. No key gets there.
func TestMemcachedNames(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{Prefix: "sixteen-bytes-0:"}, server.Addr)
	policy := &limit.Policy{Name: strings.Repeat("p", 32), Limits: backendtesting.Hourly.Limits}
	long := strings.Repeat("k", 1<<20)
	keys := []string{
		"alice", "alice ", "alice\r\nflush_all\r\n", "alice\x00", "alice\t", "alice\x7f", " ", "\r\n", "%", "%20",
		"\xff", "\xfe", "\xc3\x28", "caf\u00e9", "cafe\u0301", long, long[1:], long[1:] + "l",
		strings.Repeat(" ", 250), strings.Repeat("\xff", 251), strings.Repeat("é", 200),
	}
	for round := range int64(2) {
		for i, key := range keys {
			r := backendtesting.MustTake(t, b, backend.Request{Key: key, Policy: policy, Cost: int64(i) + 1})
			if used := 1_000_000 - r.Binding().Remaining; used != (round+1)*(int64(i)+1) {
				t.Errorf("round %d: %d are used of key %d, %.20q", round, used, i, key)
			}
		}
	}
	items := backendtesting.MemcachedItems(t, server.Addr)
	if len(items) != len(keys) {
		t.Errorf("%d keys are %d items", len(keys), len(items))
	}
	for name := range items {
		if len(name) > 250 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' }) {
			t.Errorf("%q, of %d bytes, is no name for Memcached", name, len(name))
		}
	}
}

// TestMemcachedCorrupt: what is no state is told, and left as it is.
func TestMemcachedCorrupt(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	future := time.Now().Add(time.Hour).UnixMilli()
	for _, garbage := range []string{
		"hello", "5", "f1h", "f1h:x;", "f1h:-1;", "\x00\xff", "END", backendtesting.Secret, fmt.Sprintf("f1h:%d,1", future),
		fmt.Sprintf("f1h:%d,1;f1h:%d,1;", future, future), strings.Repeat("x", 100_000),
	} {
		backendtesting.AskMemcached(t, server.Addr, fmt.Sprintf("set %s 7 0 %d\r\n%s", backendtesting.Stored(backendtesting.Secret), len(garbage), garbage))
		backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
			if op != "ping" {
				backendtesting.WantError(t, err, backend.Corrupt, false)
			}
		})
		lines := backendtesting.AskMemcached(t, server.Addr, "get "+backendtesting.Stored(backendtesting.Secret))
		if garbage != "END" && (len(lines) != 3 || lines[1] != garbage) {
			t.Errorf("%.40q was changed to %.100q", garbage, lines)
		}
		if ttl := backendtesting.MemcachedTTL(t, server.Addr, backendtesting.Stored(backendtesting.Secret)); ttl != -1 {
			t.Errorf("%.40q lives for %d s", garbage, ttl)
		}
	}
}
