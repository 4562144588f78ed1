package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/limit"
)

// A server that goes on would be seen: a goroutine waits for each.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// short is a release in some seconds.
func short() options {
	o := defaults()
	o.clients, o.keys, o.step = 16, 40, 400*time.Millisecond
	o.fixed, o.sliding = limit.Fixed(10, time.Second), limit.Sliding(20, 2*time.Second, 200*time.Millisecond)
	o.refresh, o.settle = 200*time.Millisecond, 1500*time.Millisecond
	return o
}

func TestRelease(t *testing.T) {
	t.Parallel()
	o := short()
	o.svg = filepath.Join(t.TempDir(), "release.svg")
	var out visitor
	total, err := play(t.Context(), o, &out)
	t.Logf("\n%s", &out.Buffer)
	if err != nil {
		t.Fatal(err)
	}
	if total.over != 0 || total.errors != 0 || total.bounded != 0 || total.exitCode() != 0 {
		t.Errorf("exit code %d: %v", total.exitCode(), total)
	}
	if total.requests < 1000 || total.allowed > total.requests*9/10 || total.handed < 100 || total.shadows < 100 {
		t.Errorf("the load tests nothing: %v", total)
	}
	lines := strings.Split(out.String(), "\n")
	for _, line := range lines {
		if len(line) > 120 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	for i, redis := range []string{"0%", "1%", "10%", "50%", "100%", "10%", "100%", "alone"} {
		if want := fmt.Sprint([]string{fmt.Sprint(i + 1), redis}); !containsRow(lines, want) {
			t.Errorf("no line begins with %s", want)
		}
	}
	picture, err := os.ReadFile(o.svg)
	if err != nil {
		t.Fatal(err)
	}
	checkSVG(t, picture, "over the limit: 0", "0%", "1%", "50%", "100%", "Redis alone", "admitted a second")

	// What an operator saw meanwhile.
	var vars struct {
		Migration struct {
			Flag     struct{ Name, Reason string }
			Old, New struct {
				Name      string
				Reachable bool
				RTT       int64 `json:"rtt_micros"`
			}
			Dual struct{ Old, Handovers, Redirected int64 }
		} `json:"sluice_migration"`
	}
	if err := errors.Join(out.err, json.Unmarshal(out.seen, &vars)); err != nil {
		t.Fatal(err)
	}
	if m := vars.Migration; m.Flag.Name != flagName || m.Flag.Reason != "split" || m.Dual.Old == 0 || m.Dual.Handovers == 0 ||
		!m.Old.Reachable || !m.New.Reachable || m.Old.RTT == 0 || m.New.RTT == 0 || !strings.HasPrefix(m.Old.Name, "memcached") {
		t.Errorf("/debug/vars: %s", out.seen)
	}
}

func containsRow(lines []string, want string) bool {
	for _, line := range lines {
		if cells := strings.Fields(line); len(cells) == len(columns) && fmt.Sprint(cells[:2]) == want {
			return true
		}
	}
	return false
}

// visitor keeps what is printed, and fetches the state once the second step has ended.
type visitor struct {
	bytes.Buffer
	seen []byte
	err  error
}

func (v *visitor) Write(p []byte) (int, error) {
	if strings.HasPrefix(strings.TrimSpace(string(p)), "2 ") {
		_, after, _ := strings.Cut(v.String(), "State: ")
		url, _, _ := strings.Cut(after, "\n")
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
		var answer *http.Response
		if answer, v.err = client.Get(url); v.err == nil {
			v.seen, v.err = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
	}
	return v.Buffer.Write(p)
}

// Without the carry-over the same load is over the limit, or TestRelease would prove nothing.
func TestWithoutCarryOver(t *testing.T) {
	t.Parallel()
	o := short()
	o.withoutCarryOver = true
	total, err := play(t.Context(), o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(total)
	if total.over == 0 || total.exitCode() != 1 {
		t.Errorf("exit code %d: %v", total.exitCode(), total)
	}
}

func TestOverLimit(t *testing.T) {
	t.Parallel()
	fixed, sliding := limit.Fixed(3, 2*time.Second), limit.Sliding(5, 10*time.Second, time.Second)
	at := func(seconds, reset float64) admission {
		return admission{at: int64(seconds * 1e6), reset: int64(reset * 1e6), step: int(seconds)}
	}
	for name, test := range map[string]struct {
		admitted []admission
		want     map[int]int
	}{
		"as many as may be":           {[]admission{at(0, 2), at(0.5, 2), at(1, 2), at(2, 4), at(3, 4)}, nil},
		"a fourth in a window":        {[]admission{at(0, 2), at(0, 2), at(1, 2), at(1.5, 2)}, map[int]int{1: 1}},
		"counted in two places":       {[]admission{at(0, 2), at(0.1, 2), at(0.2, 2), at(0.3, 2.3)}, map[int]int{0: 1}},
		"at the edge of two windows":  {[]admission{at(0, 2), at(0.1, 2), at(1.9, 2), at(1.99, 4)}, nil},
		"by a clock that lags":        {[]admission{at(0, 2), at(0.1, 2), at(0.2, 2), at(1.8, 4)}, nil},
		"a sixth in ten seconds":      {[]admission{at(0, 2), at(2, 4), at(4, 6), at(6, 8), at(8, 10), at(8.5, 10)}, map[int]int{8: 1}},
		"a sixth as the first leaves": {[]admission{at(0, 2), at(2, 4), at(4, 6), at(6, 8), at(8, 10), at(9.1, 10)}, nil},
		"both limits at once": {[]admission{at(0, 2), at(2, 4), at(4, 6), at(4.1, 6), at(4.2, 6), at(4.3, 6), at(4.4, 6)},
			map[int]int{4: 2}},
	} {
		got := overLimit(map[string][]admission{"planted": test.admitted, "other": {at(0, 2), at(1, 2)}}, fixed, sliding)
		if len(got) != len(test.want) || fmt.Sprint(got) != fmt.Sprint(test.want) && test.want != nil {
			t.Errorf("%s: %v over the limit, want %v", name, got, test.want)
		}
	}
}

func TestDrawing(t *testing.T) {
	t.Parallel()
	marks := []mark{{0, 0, "0%"}, {time.Second, 100, "100%"}, {2 * time.Second, 100, "alone"}}
	picture := drawing([]pair{{5, 0}, {0, 0}, {3, 2}, {1, 1}}, 700*time.Millisecond, marks, outcome{took: 2500 * time.Millisecond, over: 7})
	checkSVG(t, picture, "over the limit: 7", "100% until nothing is carried over", "Redis alone")
	checkSVG(t, drawing(nil, time.Second, nil, outcome{took: time.Second}), "over the limit: 0")
	picture, err := os.ReadFile("migration.svg")
	if err != nil {
		t.Fatal(err)
	}
	checkSVG(t, picture, "over the limit: 0", "Redis alone")
}

// checkSVG reads a picture as XML and looks for texts.
func checkSVG(t *testing.T, picture []byte, texts ...string) {
	t.Helper()
	found := make(map[string]bool)
	for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		if text, ok := token.(xml.CharData); ok {
			found[string(text)] = true
		}
	}
	for _, text := range texts {
		if !found[text] {
			t.Errorf("no text %q in the picture", text)
		}
	}
	if bytes.Contains(picture, []byte("NaN")) || bytes.Contains(picture, []byte("Inf")) || len(picture) > 60<<10 {
		t.Errorf("a picture of %d bytes:\n%.2000s", len(picture), picture)
	}
}

// An interrupt ends the release at once, and with it the servers.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	o := short()
	o.step = time.Hour
	_, err := play(ctx, o, writerFunc(func(p []byte) {
		if bytes.Contains(p, []byte("requests")) && bytes.Contains(p, []byte("step")) {
			interrupt()
		}
	}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestServersEnd(t *testing.T) {
	t.Parallel()
	s, err := openServers(t.Context(), defaults(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.children) != 1+2*groups {
		t.Errorf("%d servers", len(s.children))
	}
	s.retireMemcached()
	s.stop()
	for _, c := range s.children {
		if err := c.cmd.Process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s runs still: %v", c.program, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	path := os.Getenv("PATH")
	for name, test := range map[string]struct {
		args string
		path string
		code int
		want []string
	}{
		"help":              {"-h", path, 0, []string{"-without-carry-over", "-topology"}},
		"all that is wrong": {"-clients 0 -keys -1 -step 1ms -topology x y", path, 2, []string{"-clients", "-keys", "-step", "go together", `"y"`}},
		"no such flag":      {"-seed 1", path, 2, []string{"-seed"}},
		"no servers":        {"", "", 1, []string{"redis-server", "apt-get install redis-server memcached", "-topology FILE"}},
		"no topology":       {"-topology /none -memcached localhost:1", path, 1, []string{"/none"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", test.path)
			var stderr bytes.Buffer
			if code := run(t.Context(), strings.Fields(test.args), io.Discard, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("nothing about %q in\n%s", want, &stderr)
				}
			}
		})
	}
}
