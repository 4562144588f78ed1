package backendtesting

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/limit/state"
)

func OpenMemcached(t testing.TB, cfg memcached.Config, servers ...string) *memcached.Memcached {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = Patient
	}
	m, err := memcached.New(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// MemcachedStat is one number of a server's statistics.
func MemcachedStat(t testing.TB, addr, name string) int64 {
	t.Helper()
	for _, line := range AskMemcached(t, addr, "stats") {
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

// MemcachedItems is how long each item has to live, in seconds and by name; -1 for ever.
func MemcachedItems(t testing.TB, addr string) map[string]int64 {
	t.Helper()
	items := make(map[string]int64)
	Await(t, "a listing of all items", func() bool { // one on its way from list to list is missing
		clear(items)
		for _, line := range AskMemcached(t, addr, "lru_crawler metadump all") {
			escaped, ok := strings.CutPrefix(strings.Fields(line)[0], "key=")
			if !ok {
				continue
			}
			name, err := url.PathUnescape(escaped)
			if err != nil {
				t.Fatal(err)
			}
			items[name] = MemcachedTTL(t, addr, name)
		}
		return int64(len(items)) == MemcachedStat(t, addr, "curr_items")
	})
	return items
}

// MemcachedUsed is what is stored of one of hourly's keys, past the backend.
func MemcachedUsed(t testing.TB, addr, key string) int64 {
	t.Helper()
	lines := AskMemcached(t, addr, "get "+Stored(key))
	if len(lines) != 3 {
		return 0
	}
	st, err := state.ParseState(lines[1])
	if err != nil {
		t.Fatal(err)
	}
	v := st.Peek(Hourly, state.At{Micros: time.Now().UnixMicro()}, 1)
	return Hourly.Limits[0].Max - v.Binding().Remaining
}

// AskMemcached sends a command and returns the answer, a line each.
func AskMemcached(t testing.TB, addr, command string) []string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, Patient)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(Patient))
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

// MemcachedTTL is how long an item has to live, in seconds; -1 for ever, -2 if there is none.
func MemcachedTTL(t testing.TB, addr, name string) int64 {
	t.Helper()
	answer := AskMemcached(t, addr, "mg "+name+" t")[0]
	if answer == "EN" {
		return -2
	}
	seconds, err := strconv.ParseInt(strings.TrimPrefix(answer, "HD t"), 10, 64)
	if err != nil {
		t.Fatalf("meta get: %q", answer)
	}
	return seconds
}
