package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/picture"
)

func newServer(t *testing.T) *server {
	t.Helper()
	s, err := startServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// The whole program, with slices that measure nothing: every table is complete, every target has a figure.
func TestRun(t *testing.T) {
	c := fullConfig()
	c.rounds, c.slice, c.attack, c.keys, c.pastOf, c.spread = 2, 4*time.Millisecond, 4*time.Millisecond, 40, 4, 2000
	dir := t.TempDir()
	c.json, c.svg = filepath.Join(dir, "report.json"), filepath.Join(dir, "pictures")
	var out strings.Builder
	if _, err := run(t.Context(), &c, &out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.json)
	if err != nil {
		t.Fatal(err)
	}
	var report Report // as others read it
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}

	if len(report.Network) != len(defaultRows()) {
		t.Errorf("%d rows, want %d", len(report.Network), len(defaultRows()))
	}
	for _, r := range report.Network {
		if want := len(r.Row.peers()); r.Row.Limits == 1 && len(r.Peers) != want {
			t.Errorf("%s: %d peers, want %d", r.Name, len(r.Peers), want)
		}
		if r.Row.Limits == 3 && (r.find(sluice) == nil || r.find(carlson) == nil || r.find(redisRate) != nil) {
			t.Errorf("%s: the peers are not those that can", r.Name)
		}
		for _, p := range r.Peers {
			want := 1.0
			if r.Row.Denied {
				want = 0
			}
			m := p.Median
			allowedRight := m.Allowed == want
			if p.Peer == carlson && r.Row.Limits == 3 { // which refuses callers whose clock is of the second before
				allowedRight = m.Allowed > 0.5
			}
			if r.Row.Attack { // it depends on how many requests there are
				allowedRight = m.Allowed > 0
			}
			commands, bytes := 0.9, int64(50)
			switch {
			case p.Peer == sluiceCredit: // which has taken its keys before
				commands, bytes = 0, 0
			case strings.HasPrefix(p.Peer, sluiceLease): // which may need none
				commands = 0
			case strings.HasPrefix(p.Peer, sluice): // whose callers share them
				commands = 1.0 / 128
			}
			if len(p.Rounds) != r.Row.rounds(&c) || !allowedRight || m.PerSecond <= 0 || m.P50 <= 0 || m.P99 < m.P50 ||
				m.Commands < commands || m.Allocs <= 0 || p.BytesPerKey < bytes {
				t.Errorf("%s: %s: %+v, want the share %v allowed", r.Name, p.Peer, p, want)
			}
			if p.Failure != "" && p.Peer != "throttled" { // which gives up where callers meet on a key
				t.Errorf("%s: %s failed: %s", r.Name, p.Peer, p.Failure)
			}
			if !strings.Contains(out.String(), "\n  "+p.Peer+" ") {
				t.Errorf("%s is not in the output", p.Peer)
			}
		}
	}
	if len(report.Memory) != 8 || len(report.HTTP) != 2 || len(report.Rings) != 4 {
		t.Errorf("%d tables in this process, %d of middlewares, %d of rings", len(report.Memory), len(report.HTTP), len(report.Rings))
	}
	for _, v := range report.Targets {
		if v.Measured == nil {
			t.Errorf("%s was not measured", v.Name)
		}
		if !strings.Contains(out.String(), v.Name) {
			t.Errorf("%s is not in the output", v.Name)
		}
	}
	for _, name := range []string{"decisions.svg", "redis-cpu.svg"} {
		drawn, err := os.ReadFile(filepath.Join(c.svg, name))
		if err != nil {
			t.Fatal(err)
		}
		checkSVG(t, string(drawn), len(networkPeers))
	}
}

func checkSVG(t *testing.T, drawn string, bars int) {
	t.Helper()
	got := 0
	for d := xml.NewDecoder(strings.NewReader(drawn)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the picture is not well-formed: %v\n%s", err, drawn)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "rect" {
			continue
		}
		at := make(map[string]float64)
		for _, a := range start.Attr {
			if a.Name.Local == "class" && strings.HasPrefix(a.Value, "bar") {
				got++
			}
			at[a.Name.Local], _ = strconv.ParseFloat(a.Value, 64)
		}
		if at["x"]+at["width"] > picture.BarsWidth || at["width"] <= 0 {
			t.Errorf("a bar from %v is %v wide", at["x"], at["width"])
		}
	}
	if got != bars {
		t.Errorf("%d bars, want %d", got, bars)
	}
}

func TestFlags(t *testing.T) {
	c, err := parseFlags([]string{"-quick", "-slice", "5ms", "-peers", "sluice,redis_rate"}, io.Discard)
	if err != nil || c.rounds != 3 || c.slice != 5*time.Millisecond || len(c.peers) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = parseFlags([]string{"-all"}, io.Discard); err != nil || len(c.rows) != 38 {
		t.Errorf("%d rows, %v", len(c.rows), err)
	}
	for _, args := range [][]string{{"-rounds", "0"}, {"-slice", "-1s"}, {"-peers", "sluice,nobody"}, {"extra"}, {"-x"},
		{"-soak", "-1s"}} {
		if _, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestRowNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range allRows() {
		if name := r.Name(); seen[name] {
			t.Errorf("%q twice", name)
		} else {
			seen[name] = true
		}
	}
	for _, r := range defaultRows() {
		if !seen[r.Name()] {
			t.Errorf("%q is not among all", r.Name())
		}
	}
}

func TestOrder(t *testing.T) {
	const keys = 100
	for _, zipf := range []bool{false, true} {
		counts := make([]int, keys)
		for _, i := range makeOrder(keys, zipf, 1) {
			counts[i]++
		}
		first := float64(counts[0]) / orderLength
		if zipf && (first < 0.15 || first > 0.4) || !zipf && (first < 0.008 || first > 0.012) {
			t.Errorf("Zipf %t: the first of %d keys has the share %.3f", zipf, keys, first)
		}
	}
}

func TestTable(t *testing.T) {
	var table table
	table.add("a heading that is wide")
	table.add("", "x", "long")
	table.add("  name", "1", "2")
	var out strings.Builder
	if err := table.write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "a heading that is wide\n        x  long\n  name  1     2\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
