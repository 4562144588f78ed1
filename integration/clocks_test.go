//go:build unix

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// clockEnv holds an hour in JSON, in the environment of a process of this binary whose clock is wrong.
const clockEnv = "SLUICE_INTEGRATION_CLOCK"

// hour is what a process with a wrong clock does: it makes calls at moments of its own time.
type hour struct {
	Addr, Key string
	ByHost    bool            // judge by the host's clock
	Sleeps    []time.Duration // before each batch of calls
	Calls     int             // in a batch
}

// seen is what it has seen.
type seen struct {
	Admitted int64
	Resets   []int64 // Unix microseconds, by decision
}

var aligned = limit.PerHour(100).Aligned()

func (h *hour) setup() setup {
	groups, _ := groupsOf(h.Addr)
	cfg := router.Config{Heartbeat: -1, Backend: redisbackend.Config{Timeout: patience}}
	if h.ByHost {
		cfg.Backend.Now = time.Now
	}
	return setup{groups: groups, policy: one(aligned), failure: throttler.FailClosed, router: cfg}
}

func (h *hour) play(t *testing.T) seen {
	var s seen
	c := ours(t, 1, h.setup())
	for _, d := range h.Sleeps {
		time.Sleep(d) // in a bubble, a jump of its clock
		for range h.Calls {
			d, err := c.sluiceOf(0).decide(context.Background(), h.Key)
			if err != nil {
				t.Fatal(err)
			}
			s.Resets = append(s.Resets, d.ResetAt.UnixMicro())
			if d.Allowed {
				s.Admitted++
			}
		}
	}
	return s
}

// elsewhere plays the hour in another process, within a synctest bubble: its time begins in the year 2000, stands still
// while it works, and jumps when it sleeps. (A bubble needs a process of its own, for it may share nothing that is pooled.)
func (h *hour) elsewhere(t *testing.T) (s seen) {
	t.Helper()
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHostClock$")
	cmd.Env = append(os.Environ(), clockEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	first, _, _ := strings.Cut(string(out), "\n")
	if err == nil {
		err = json.Unmarshal([]byte(first), &s)
	}
	if err != nil {
		t.Fatalf("the process with the wrong clock: %v\n%s", err, out)
	}
	return s
}

// TestHostClock lets processes whose clocks are 26 years behind, and then 24 ahead, share a window with one whose clock is
// right. Once more with the host's clock in the place of the server's, the run admits too much: so it would be noticed.
func TestHostClock(t *testing.T) {
	if text := os.Getenv(clockEnv); text != "" {
		synctest.Test(t, func(t *testing.T) {
			var h hour
			if err := json.Unmarshal([]byte(text), &h); err != nil {
				t.Fatal(err)
			}
			out, err := json.Marshal(h.play(t))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(string(out))
		})
		return
	}
	t.Parallel()
	const years = 50 * 365 * 24 * time.Hour
	s := startRedis(t)
	play := func(key string, byHost bool) (admitted int64) {
		resets := make(map[int64]bool)
		add := func(s seen) {
			admitted += s.Admitted
			for _, at := range s.Resets {
				resets[at] = true
			}
		}
		part := func(calls int, sleeps ...time.Duration) *hour {
			return &hour{Addr: s.addr, Key: key, ByHost: byHost, Sleeps: sleeps, Calls: calls}
		}
		all := int(aligned.Max)
		add(part(30, 0).play(t))
		add(part(10, 0, time.Second, 10*time.Hour, 40*24*time.Hour, years).elsewhere(t))
		add(part(all, 0).play(t))
		add(part(all, 0).elsewhere(t))
		add(part(all, years).elsewhere(t))
		if len(resets) != 1 && !byHost {
			t.Errorf("one window has %d resets: %v", len(resets), resets)
		}
		return admitted
	}
	for time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)) < 30*time.Second {
		time.Sleep(time.Second) // the window must not end meanwhile
	}
	admitted := play("user:1", false)
	byHost := play("user:2", true)
	if byHost <= aligned.Max {
		t.Errorf("by the host's clock %d are admitted of %d: the test doesn't show what the server's clock does", byHost, aligned.Max)
	}
	shown := figures{over: max(0, admitted-aligned.Max)}
	shown.note = fmt.Sprintf("by the host's clock over %d", byHost-aligned.Max)
	report(t, "host-clock", result{sluice: shown})
}
