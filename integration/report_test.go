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
	_ = flag.Set("test.parallel", "5") // most tests wait for servers and for faults to end; the command line may override it
	flag.Parse()
	logging.Disable() // go-redis prints a line for every refused connection
	code := m.Run()
	if code == 0 && *scoreboard != "" {
		if err := writeScoreboard(*scoreboard); err != nil {
			fmt.Fprintln(os.Stderr, "scoreboard:", err)
			code = 1
		}
	}
	err := goleak.Find(engineLeaks...)
	for end := time.Now().Add(3 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(engineLeaks...) // a closed go-redis client that dials a dead server notices within a second
	}
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// figures are the results of a contender under a fault.
type figures struct {
	over    int64         // admitted above Max; or unmeasured
	longest time.Duration // of its calls; 0 if meaningless
	counts  float64       // per call that may have been counted; 0 if meaningless
	note    string
}

// unmeasured stands for over if the test reaches no limit.
const unmeasured = -1

// of reads a contender's figures.
func of(c *contender, over int64) figures {
	return figures{over: max(0, over), longest: time.Duration(c.longest.Load())}
}

// unlimited reads a contender's figures if no limit is reached.
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
	bound             int64 // of the cost admitted above Max
	formula           string
	sluice            figures
	redisRate, goRing *figures // nil if a comparison makes no sense
}

var (
	resultsMu sync.Mutex // guards results
	results   = make(map[string]result)
)

// report logs a fault's figures, keeps them for the scoreboard, and fails the test if the promise is broken.
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

// writeScoreboard writes docs/FAULTS.md. It needs the results of all rows.
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

Each row is a fault, the promise of Sluice, and the result of one run of the fault suite in ` + "`integration/`" + `: real Redis processes
that are killed, frozen, emptied or cut off, whose replies are lost or truncated, or whose clock is wrong. redis_rate suffered the
same fault on the same servers in the same run, on a go-redis client and on a go-redis Ring, each with its defaults. The tests
write this page, and fail if a promise breaks.

- *over*: cost admitted above Max.
- *longest*: the longest call. Each call has a deadline of 500 ms, and Sluice waits for a server for 250 ms. Rows in which no
  server is slow, but this machine may be, allow 3 s for both.
- *counts*: how often the servers counted a call that may have reached them, in the mean.
- A call *without a verdict* was not made, or its outcome is unknown and reported as such; it is denied here. Calls of Sluice share
  round trips, so one lost reply is the reply of several calls.
- *without ...*: the same fault with one mechanism of Sluice switched off; the tests fail if that makes no difference.

A cell is empty if the comparison makes no sense or no limit is reached. go-redis's failover client follows the sentinels for
redis_rate. ` + "`make soak`" + ` plays the faults in turn on the same servers for as long as you like.

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

// required returns the version of a module in go.mod.
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
