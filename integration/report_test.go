//go:build unix

package integration_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

var scoreboard = flag.String("scoreboard", "", "write what the run showed to this Markdown `file`")

func TestMain(m *testing.M) {
	if child() {
		return
	}
	_ = flag.Set("test.parallel", "5") // most of them wait for servers, and for faults to end; the command line may say otherwise
	flag.Parse()
	logging.Disable() // go-redis prints a line for every connection that is refused
	code := m.Run()
	if code == 0 && *scoreboard != "" {
		if err := writeScoreboard(*scoreboard); err != nil {
			fmt.Fprintln(os.Stderr, "scoreboard:", err)
			code = 1
		}
	}
	err := goleak.Find(engineLeaks...)
	for end := time.Now().Add(3 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(engineLeaks...) // a closed client of go-redis that dials a server which is gone notices within a second
	}
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// figures are what a contender showed under a fault.
type figures struct {
	over    int64         // admitted above Max; or unmeasured
	longest time.Duration // of its calls; 0 where that says nothing
	counts  float64       // per call that may have been counted; 0 where that says nothing
	note    string
}

// unmeasured is what is over where no limit is reached, because the test looks at something else.
const unmeasured = -1

// of reads a contender's figures.
func of(c *contender, over int64) figures {
	return figures{over: max(0, over), longest: time.Duration(c.longest.Load())}
}

// unlimited reads a contender's figures where no limit is reached.
func unlimited(c *contender) figures {
	return figures{over: unmeasured, longest: time.Duration(c.longest.Load())}
}

func (f figures) String() string {
	s := "over=-"
	if f.over != unmeasured {
		s = fmt.Sprintf("over=%d", f.over)
	}
	if f.longest > 0 {
		s += fmt.Sprintf(" longest=%s", f.longest.Round(time.Millisecond))
	}
	if f.counts > 0 {
		s += fmt.Sprintf(" counts/call=%.2f", f.counts)
	}
	if f.note != "" {
		s += fmt.Sprintf(" note=%q", f.note)
	}
	return s
}

// A result is a row of the scoreboard.
type result struct {
	bound             int64 // of what is admitted above Max
	formula           string
	sluice            figures
	redisRate, goRing *figures // nil where a comparison makes no sense
}

var (
	resultsMu sync.Mutex // guards results
	results   = make(map[string]result)
)

// report logs the line of figures of a fault, keeps it for the scoreboard, and fails the test if the promise is broken.
func report(t *testing.T, id string, r result) {
	t.Helper()
	line := fmt.Sprintf("fault=%s bound=%d %s deadline=%s", id, r.bound, r.sluice, deadline)
	for i, peer := range []*figures{r.redisRate, r.goRing} {
		if peer != nil {
			line += fmt.Sprintf(" | %s %s", []string{"redis_rate", "ring"}[i], peer)
		}
	}
	t.Log(line)
	if r.sluice.over > r.bound {
		t.Errorf("%s: %d admitted above Max, the bound is %d", id, r.sluice.over, r.bound)
	}
	if r.sluice.longest > deadline+slack {
		t.Errorf("%s: a call with a deadline of %s took %s", id, deadline, r.sluice.longest)
	}
	if r.sluice.counts > 1 {
		t.Errorf("%s: a call was counted %.2f times", id, r.sluice.counts)
	}
	for _, known := range rows {
		if known.id == id {
			resultsMu.Lock()
			defer resultsMu.Unlock()
			results[id] = r
			return
		}
	}
	t.Errorf("%s is no row", id)
}

// writeScoreboard writes docs/FAULTS.md. It needs all rows.
func writeScoreboard(file string) error {
	var b strings.Builder
	b.WriteString(scoreboardHead)
	fmt.Fprintf(&b, "Run of %s with %s on %s/%s, %s (%s), redis_rate %s, go-redis %s:\n\n    make scoreboard\n\n",
		time.Now().UTC().Format("2006-01-02"), runtime.Version(), runtime.GOOS, runtime.GOARCH, serverVersion(), form,
		required("redis_rate/v10"), required("redis/go-redis/v9"))
	b.WriteString("| fault | promise | bound above Max | Sluice | redis_rate | redis_rate on a Ring |\n|---|---|---|---|---|---|\n")
	for _, row := range rows {
		r, ok := results[row.id]
		if !ok {
			return fmt.Errorf("no test has reported %s: run all of them", row.id)
		}
		bound := fmt.Sprint(r.bound)
		if r.sluice.over == unmeasured {
			bound = ""
		}
		if r.formula != "" {
			bound += ": " + r.formula
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.fault, row.promise, bound, r.sluice.cell(), r.redisRate.cell(),
			r.goRing.cell())
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

const scoreboardHead = `# Faults

What Sluice promises when something breaks, and what a run of the fault suite in ` + "`integration/`" + ` showed: real Redis
processes that are killed, frozen, emptied, cut off, lied about and given a wrong clock. redis_rate suffered the same fault
on the same servers in the same run, on a go-redis client and on a go-redis Ring, with the defaults of both. This page is
written by the tests, which fail where a promise doesn't hold.

- *over*: what was admitted above Max.
- *longest*: the longest call. Each is given 500 ms by its context, and Sluice waits for a server for 250 ms. Rows in which
  no server is slow, but this machine may be, give 3 s to both.
- *counts*: how often the servers counted a call that they may have seen, in the mean.
- A call *without a verdict* is one whose outcome the caller is told is not known, or that was not made; it is denied here.
  Calls of Sluice share round trips, so that one lost reply is that of several calls.
- *without ...*: the same fault with one mechanism of Sluice switched off; the tests fail if that makes no difference.

An empty cell: the comparison makes no sense, or no limit is reached. Sentinels are followed by go-redis's failover client
there. ` + "`make soak`" + ` lets the faults take turns on the same servers for as long as you like.

`

func (f *figures) cell() string {
	if f == nil {
		return ""
	}
	var parts []string
	if f.over != unmeasured {
		parts = append(parts, fmt.Sprintf("over %d", f.over))
	}
	if f.longest > 0 {
		parts = append(parts, fmt.Sprintf("longest %d ms", f.longest.Milliseconds()))
	}
	if f.counts > 0 {
		parts = append(parts, fmt.Sprintf("counts %.2f", f.counts))
	}
	if f.note != "" {
		parts = append(parts, f.note)
	}
	return strings.Join(parts, "; ")
}

// required is the version of a module that go.mod requires.
func required(module string) string {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return "?"
	}
	if m := regexp.MustCompile(regexp.QuoteMeta(module) + ` (\S+)`).FindSubmatch(mod); m != nil {
		return string(m[1])
	}
	return "?"
}
