//go:build unix

package redisbackend

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// TestSettle has a process that knows a server, without a loss since it came at moment 10, hear at moment 100 what the marker is.
func TestSettle(t *testing.T) {
	const later = 50
	for name, test := range map[string]struct {
		id, knew string // "" for what it was
		mark     marker
		marks    bool
		lost     int64
		write    bool
	}{
		"as it was":              {mark: marker{"a:0", 0, "other.1"}, marks: true},
		"gone":                   {marks: true, lost: 100, write: true},
		"unreadable":             {mark: parseMarker("a:0 0"), marks: true, lost: 100, write: true},
		"of another process":     {mark: marker{"b:0", 0, "other.1"}, marks: true, lost: 100, write: true},
		"written anew":           {mark: marker{"a:0", 0, "young.1"}, marks: true, lost: 100, write: true},
		"by who knew of a loss":  {mark: marker{"a:0", later, "young.1"}, marks: true, lost: later},
		"this process's own":     {mark: marker{"a:0", 0, "mine.1"}, marks: true},
		"none was known":         {knew: "none", mark: marker{"a:0", 0, "young.1"}, marks: true},
		"restarted, told":        {id: "b:0", mark: marker{"b:0", later, "young.1"}, marks: true, lost: later},
		"restarted, began after": {id: "b:0", knew: "none", mark: marker{"b:0", 0, "young.1"}, marks: true, lost: 100, write: true},
		"restarted, no right":    {id: "b:0", lost: 100},
		"no right":               {},
		"evicts":                 {id: "a:1", mark: marker{"a:0", 0, "other.1"}, marks: true, lost: 100, write: true},
	} {
		c := newContinuity()
		c.own, c.nonce = "mine.", "other.1"
		c.id = "a:0"
		says := &identity{info: info{primary: true}, nowMicros: 100, id: "a:0", marks: test.marks, mark: test.mark, knew: "other.1"}
		if test.id != "" {
			says.id = test.id
		}
		if test.knew != "" {
			says.knew, c.nonce = "", ""
		}
		c.observe(says, false)
		if c.lostAt.Load() != test.lost || (c.unwritten.Load() != nil) != test.write {
			t.Errorf("%s: lost at %d, to write %v; want %d, %t", name, c.lostAt.Load(), c.unwritten.Load(), test.lost, test.write)
		}
	}
}

// TestRoomWhenTimeGoesBack: how long a server that may evict has room says nothing once its clock was set back.
func TestRoomWhenTimeGoesBack(t *testing.T) {
	const asked = int64(time.Hour / time.Microsecond)
	c := newContinuity()
	c.observe(&identity{info: info{primary: true, most: 100 * growth, evicting: "allkeys-lru"}, nowMicros: asked, id: "a:0"}, false)
	p := &limit.Policy{Limits: []limit.Limit{limit.PerHour(1)}}
	for since, want := range map[time.Duration]error{
		0: nil, time.Second: nil, -time.Second: nil, // of a call that began before
		101 * time.Second: backend.ErrEvicted, -time.Minute: backend.ErrEvicted,
	} {
		if got := c.cause(asked+since.Microseconds(), p); got != want {
			t.Errorf("%s after the server was asked: %v, want %v", since, got, want)
		}
	}
}

// TestSettleOldAnswer: an answer that is older than the marker which this process has written meanwhile shows no loss.
func TestSettleOldAnswer(t *testing.T) {
	c := newContinuity()
	first := identity{info: info{primary: true}, nowMicros: 100, id: "a:0", marks: true}
	second := first
	c.observe(&first, false)
	w := c.unwritten.Load()
	if w == nil || !w.absent {
		t.Fatalf("to write is %v", w)
	}
	c.found(w.marker)
	c.observe(&second, false)
	third := first
	third.mark, third.knew = w.marker, w.nonce
	c.observe(&third, false)
	if lost := c.lostAt.Load(); lost != 0 {
		t.Errorf("lost at %d", lost)
	}
	gone := first
	gone.knew = w.nonce
	if c.observe(&gone, false); c.lostAt.Load() != 100 {
		t.Errorf("lost at %d when the marker has gone", c.lostAt.Load())
	}
	retry := c.unwritten.Load()
	for _, seen := range []marker{w.marker, retry.marker} { // read before and after it was written
		old := first
		old.nowMicros, old.mark, old.knew = 200, seen, w.nonce
		if c.observe(&old, false); c.lostAt.Load() != 100 {
			t.Errorf("lost at %d by the answer of %v", c.lostAt.Load(), seen)
		}
	}
}

// TestOneMarkIsWritten: connections that were opened at once each learn that there is no marker. One is written, and if it goes
// with the counts, no other takes its place unnoticed.
func TestOneMarkIsWritten(t *testing.T) {
	c := newContinuity()
	none := func() *identity { return &identity{info: info{primary: true}, nowMicros: 100, id: "a:0", marks: true} }
	c.observe(none(), false)
	w := c.unwritten.Swap(nil)
	c.observe(none(), false) // while it is being written
	c.found(w.marker)
	if another := c.unwritten.Load(); another != nil {
		t.Errorf("beside the marker that is there, another is to be written: %v", another)
	}
	c.observe(none(), false) // an answer of before it was written
	if another := c.unwritten.Load(); another != nil || c.nonce != w.nonce {
		t.Errorf("after an old answer %v is to be written, and %q is known", another, c.nonce)
	}
}

// TestMarkOfEvictions: the marker of a server that evicts is written although no caller waits for it.
func TestMarkOfEvictions(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	const timeout = time.Minute
	b, err := Open(&redis.Options{Addr: server.Addr}, Config{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &write{marker{"a:1", 5, "n"}, false}
	b.servers.one.unwritten.Store(w)
	server.Pause()
	begin := time.Now()
	b.mark(t.Context(), b.guard.Deadline(), b.servers.one)
	if took := time.Since(begin); took > timeout/2 {
		t.Errorf("a caller has waited %s", took)
	}
	server.Resume()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		text, err := server.Client().Get(t.Context(), "sl:server").Result()
		if err == nil && text == w.String() {
			break
		}
		if time.Since(begin) > timeout/2 {
			t.Fatalf("the marker is %q, error %v", text, err)
		}
	}
}

// TestIdentityOfTheSameProcess: a server that can't have been replaced isn't asked again which process it is.
func TestIdentityOfTheSameProcess(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := Open(&redis.Options{Addr: server.Addr}, Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take := func() {
		t.Helper()
		p := &limit.Policy{Limits: []limit.Limit{limit.PerHour(10)}}
		if r, err := b.Take(t.Context(), backend.Request{Key: "k", Policy: p, Cost: 1}); err != nil || r.Guarantee != backend.Exact {
			t.Errorf("%s, because %v; error %v", r.Guarantee, r.Cause, err)
		}
	}
	take()
	if err := server.Client().ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.identify(t.Context(), b.servers.one.client.Load(), b.servers.one, false); err != nil {
		t.Fatal(err)
	}
	stats := server.Client().Info(t.Context(), "commandstats").Val()
	if !strings.Contains(stats, "cmdstat_info:calls=3,") {
		t.Errorf("the server counts %s", stats)
	}
	take()
}
