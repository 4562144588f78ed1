package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
)

// config is what one run of the program does.
type config struct {
	rows    []Row
	peers   []string // names; none: all
	rounds  int
	slice   time.Duration
	attack  time.Duration // how long a turn is in the attack: one of its windows at least
	keys    int
	pastOf  int // keys of the row with a history, each of which is taken 60 times to get one
	spread  int // keys by which a ring's balance is judged
	seed    uint64
	conns   int
	loose   bool // contexts can't be cancelled
	svg     string
	json    string
	soak    time.Duration // of the attack, instead of everything else; zero for none
	verbose io.Writer     // of progress
}

func fullConfig() config {
	return config{
		rows: defaultRows(), rounds: 7, slice: 700 * time.Millisecond, attack: 2 * time.Second,
		keys: 10_000, pastOf: 500, spread: 500_000, seed: 1,
		conns: 10 * runtime.GOMAXPROCS(0), verbose: io.Discard,
	}
}

// quick is a run that shows the order of things, in less than two minutes.
func (c *config) quick() {
	c.rounds, c.slice, c.attack, c.keys, c.pastOf = 3, 200*time.Millisecond, time.Second, 2000, 200
}

func parseFlags(args []string, stderr io.Writer) (config, error) {
	c := fullConfig()
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	quick := f.Bool("quick", false, "short slices, few rounds and keys: under two minutes")
	all := f.Bool("all", false, "every combination of callers, limits, keys and verdicts: about an hour")
	rounds := f.Int("rounds", c.rounds, "how often each peer has its turn at each row")
	slice := f.Duration("slice", c.slice, "how long each turn is, but for those of the attack")
	peers := f.String("peers", "", "names of the peers to run, with commas between them; empty for all")
	f.Uint64Var(&c.seed, "seed", c.seed, "of the order of turns and of keys")
	f.BoolVar(&c.loose, "background", false, "call with context.Background(), not with a context that can be cancelled")
	f.StringVar(&c.svg, "svg", "", "directory to write bar charts to")
	f.StringVar(&c.json, "json", "", "file to write all figures to, those of every round included")
	f.DurationVar(&c.soak, "soak", 0, "attack sluice-lease for this long instead; fail if goroutines, heap or connections grow")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if *quick {
		c.quick()
	}
	if *all {
		c.rows = allRows()
	}
	f.Visit(func(given *flag.Flag) { // what is given wins over -quick
		switch given.Name {
		case "rounds":
			c.rounds = *rounds
		case "slice":
			c.slice = *slice
		}
	})
	var errs []error
	if f.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", f.Arg(0)))
	}
	if c.rounds < 1 {
		errs = append(errs, fmt.Errorf("-rounds is %d: must be at least 1", c.rounds))
	}
	if c.slice <= 0 {
		errs = append(errs, fmt.Errorf("-slice is %s: must be positive", c.slice))
	}
	if c.soak < 0 {
		errs = append(errs, fmt.Errorf("-soak is %s: must not be negative", c.soak))
	}
	if *peers != "" {
		c.peers = strings.Split(*peers, ",")
	}
	known := peerNames()
	for _, name := range c.peers {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("-peers: %q is none of %s", name, strings.Join(known, ", ")))
		}
	}
	return c, errors.Join(errs...)
}

// peerNames are all that -peers knows, each once.
func peerNames() []string {
	var names []string
	for _, m := range slices.Concat(networkPeers, hotPeers, creditPeers, attackPeers, memoryPeers, hotMemoryPeers) {
		names = append(names, m.name)
	}
	for _, m := range ringPeers {
		names = append(names, m.name)
	}
	for _, m := range httpPeers {
		names = append(names, m.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
