package top

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

// told is a process that has said something at times of our own.
func told(t testing.TB, name string, begin time.Time, every time.Duration, bodies ...string) *process {
	t.Helper()
	p := &process{shown: "http://" + name + "/debug/sluice"}
	for i, body := range bodies {
		p.record(begin.Add(time.Duration(i)*every), []byte(body))
		if p.err != nil {
			t.Fatal(p.err)
		}
	}
	return p
}

// said is what a process says that has allowed and denied that much, a tenth of it without the backend.
func said(allowed, denied int64, more string) string {
	return fmt.Sprintf(`{"policies": [
		{"policy": "api", "limits": ["100/1s", "5000/1h~1m"], "allowed": %d, "denied": %d, "errors": %d, "exposure": %d, "decisions": [
			{"allowed": false, "source": "primary", "guarantee": "exact", "count": %d},
			{"allowed": true, "source": "primary", "guarantee": "exact", "count": %d},
			{"allowed": true, "source": "fallback", "guarantee": "bounded", "count": %d}]},
		{"policy": "idle", "limits": ["1/1s"], "decisions": []}], "shadow": {}%s}`,
		allowed, denied, allowed/100, allowed/10, denied, allowed-allowed/10, allowed/10, more)
}

// The rates of each process are of its own interval; one that was started anew counts from zero, one that is new not yet.
func TestTopView(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	now := begin.Add(2 * time.Second)
	more := `, "registry": {"version": "7", "digest": "6e95da67e27a438a77ffac1cc2e1f6d34beac4e80234d73ab4bd2eb51ef0800e"},
		"shadow": {"allowed": %d, "denied": %d, "failed": 1},
		"top_denied": [{"key": "aa", "denied": 20, "over": 2}, {"key": "bb", "denied": 15, "over": 1}],
		"near_limits": [{"key": "cc", "policy": "api", "limit": "100/1s", "remaining": 7, "reset_at": "2026-11-21T12:00:02.4Z"},
			{"key": "cc", "policy": "api", "limit": "5000/1h~1m", "remaining": 8, "reset_at": "2026-11-21T12:30:00Z"}],
		"nodes": [{"group": "eu-1", "node": "10.0.0.1:6379", "role": "primary", "breaker": "closed", "latency_nanos": 812345, "rtt_nanos": 400000,
			"ahead_nanos": -1200000}, {"group": "eu-1", "node": "10.0.0.2:6379", "role": "replica", "breaker": "closed", "readable": false,
			"age_nanos": 90000000000}], "router": {"handovers": 12, "redirected": 3, "bounded": 1},
		"lease": {"leased": 900, "denied": 60, "forwarded": 30, "fetches": 10, "stranded": 40, "keys": 5},
		"dual": {"old": 70, "new": 30, "shadow": {"agreed": 8}}, "flag": {"name": "limits-in-redis", "percent": 12.5, "version": 16384, "reason": "split"}`
	refused := `, "registry": {"digest": "6e95da67", "refused": "line 1: no\nline 2: no"}, "top_denied": [{"key": "bb", "denied": 10, "over": 0}],
		"nodes": [{"group": "eu-1", "node": "10.0.0.1:6379", "role": "primary", "breaker": "open"}], "lease": {"leased": 100, "forwarded": 1},
		"flag": {"name": "limits-in-redis", "percent": 10, "version": 8192, "reason": "split", "stale": true}`
	all := []*process{
		told(t, "steady", begin, 2*time.Second, said(1000, 100, fmt.Sprintf(more, 10, 5)), said(3000, 600, fmt.Sprintf(more, 30, 15))),
		told(t, "restarted", begin, 4*time.Second, said(9000, 900, refused), said(400, 0, refused)),
		told(t, "new", begin, time.Second, said(50_000, 70_000, "")),
		{shown: "http://away/debug/sluice", err: fmt.Errorf("it is\naway")},
	}
	f := new(cli.Factory)
	for suffix, json := range map[string]bool{".txt": false, ".json": true} {
		for name, v := range map[string]*view{
			"top":       newView(now, all, 10),
			"top_first": newView(now, []*process{told(t, "app", begin, 0, said(1000, 100, ""))}, 10),
		} {
			f.JSON = json
			var b strings.Builder
			if err := f.PrintTo(&b, v); err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, name+suffix, b.String())
		}
	}
}

func TestTopSort(t *testing.T) {
	t.Parallel()
	decided := func(name string, allowed, denied, errors int, source string) string {
		return fmt.Sprintf(`{"policy": %q, "errors": %d, "decisions": [{"allowed": true, "source": %q, "guarantee": "exact", "count": %d},
			{"allowed": false, "source": %[3]q, "guarantee": "exact", "count": %[5]d}]}`, name, errors, source, allowed, denied)
	}
	app := told(t, "app", time.Now(), 0, `{"policies": [`+strings.Join([]string{
		decided("most", 1000, 10, 0, "primary"), decided("denied", 500, 100, 0, "leased"), decided("share", 10, 20, 0, "local"),
		decided("errors", 2, 0, 7, "primary"), decided("fallback", 1, 0, 0, "fallback"),
	}, ",")+`]}`)
	for order, first := range map[string]string{
		"decisions": "most", "denied": "denied", "share": "share", "errors": "errors", "fallback": "fallback", "name": "denied",
	} {
		v := newView(time.Now(), []*process{app}, 0)
		v.sort(order)
		if got := v.Policies[0].Policy; got != first {
			t.Errorf("--sort %s: first is %s, want %s", order, got, first)
		}
	}
	if len(orders) != len(orderNames) {
		t.Errorf("orders %v", orderNames)
	}
}

// The handler is asked for as many keys as are wanted, beside what the URL asks for.
func TestTopQuery(t *testing.T) {
	t.Parallel()
	u, err := url.Parse("http://host/debug/sluice?token=x&top=5")
	if err != nil {
		t.Fatal(err)
	}
	if got := withTop(u, 33); got != "http://host/debug/sluice?token=x&top=33" {
		t.Error(got)
	}
	var v struct{ Policies []any }
	p := told(t, "app", time.Now(), 0, `{"policies": []}`)
	text, err := json.Marshal(newView(time.Now(), []*process{p}, 0))
	if err != nil || json.Unmarshal(text, &v) != nil || v.Policies == nil {
		t.Errorf("%s, %v: want lists, also where nothing is in them", text, err)
	}
}
