package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A Row is one kind of work, done by every peer that can.
type Row struct {
	Callers int  // goroutines that ask, each one request at a time
	Limits  int  // 1: one an hour. 3: one a second, one a minute, and a sliding one an hour in minutes
	Zipf    bool // keys are drawn by Zipf's law, exponent 1.1; otherwise all are as likely
	Denied  bool // every key is exhausted; otherwise no key comes near its limits
	History bool // every key has been used in every minute of the last hour
	Hot     bool // there are hotKeys keys; otherwise as many as are asked for
	Apart   bool // each caller has a client of its own, as each process of a fleet; otherwise all share one
	Attack  bool // attackers keys, with a limit of ten a second, at several instances
}

// Name says what the row is; it is unique.
func (r Row) Name() string {
	callers := fmt.Sprintf("%d callers", r.Callers)
	if r.Callers == 1 {
		callers = "1 caller"
	}
	if r.Apart {
		callers = fmt.Sprintf("%d clients with one caller each", r.Callers)
	}
	limits := "one limit"
	if r.Limits == 3 {
		limits = "three limits, one sliding"
	}
	keys, verdict := "uniform keys", "allowed"
	if r.Zipf {
		keys = "Zipf keys"
	}
	if r.Denied {
		verdict = "denied"
	}
	if r.Attack {
		return fmt.Sprintf("attack: %s, as %d clients that have 10 a second each, ask %d instances", callers, attackers, instances)
	}
	if r.Hot {
		keys = fmt.Sprintf("%d hot keys", hotKeys)
	}
	name := fmt.Sprintf("%s, %s, %s, %s", callers, limits, keys, verdict)
	if r.History {
		name += ", after an hour of use"
	}
	return name
}

// Reference is the peer that the others are compared with.
func (r Row) Reference() string {
	if r.Limits > 1 {
		return carlson
	}
	return redisRate
}

// The rows that README.md shows, by the names that targets use.
var (
	manyCallers = Row{Callers: 64, Limits: 1}
	mostCallers = Row{Callers: 256, Limits: 1}
	oneCaller   = Row{Callers: 1, Limits: 1}
	manyClients = Row{Callers: 64, Limits: 1, Apart: true}
	hotClients  = Row{Callers: 64, Limits: 1, Apart: true, Hot: true}
	threeLimits = Row{Callers: 64, Limits: 3}
	longHistory = Row{Callers: 64, Limits: 3, History: true}
	denied      = Row{Callers: 64, Limits: 1, Denied: true}
	zipf        = Row{Callers: 64, Limits: 1, Zipf: true}
	hotAllowed  = Row{Callers: 64, Limits: 1, Hot: true}
	hotDenied   = Row{Callers: 64, Limits: 1, Hot: true, Denied: true}
	attack      = Row{Callers: 200, Limits: 1, Attack: true}
)

func defaultRows() []Row {
	return []Row{manyCallers, mostCallers, oneCaller, manyClients, hotClients, threeLimits, longHistory, denied, zipf, hotAllowed, hotDenied, attack}
}

// allRows is the full cross product, and the rows that are of their own kind.
func allRows() []Row {
	var rows []Row
	for _, limits := range []int{1, 3} {
		for _, callers := range []int{1, 16, 64, 256} {
			for _, zipf := range []bool{false, true} {
				for _, denied := range []bool{false, true} {
					rows = append(rows, Row{Callers: callers, Limits: limits, Zipf: zipf, Denied: denied})
				}
			}
		}
	}
	return append(rows, manyClients, hotClients, longHistory, hotAllowed, hotDenied, attack)
}

// plenty is never used up. It is also within what every peer can count: limiters multiplies a count with nanoseconds.
const plenty = 1_000_000

// Quotas are the same for every peer. A denied key has spent its one request long ago, and gets it back in an hour.
func (r Row) Quotas() []Quota {
	if r.Attack {
		return []Quota{{Max: 10, Window: time.Second}}
	}
	max := int64(plenty)
	if r.Denied {
		max = 1
	}
	if r.Limits == 1 {
		return []Quota{{Max: max, Window: time.Hour}}
	}
	return []Quota{
		{Max: plenty, Window: time.Second}, {Max: plenty, Window: time.Minute},
		{Max: max, Window: time.Hour, Precision: time.Minute},
	}
}

// rounds are half of what is asked for where no target needs exact figures: with twelve rows a run takes long.
func (r Row) rounds(c *config) int {
	if r == denied || r == zipf {
		return (c.rounds + 1) / 2
	}
	return c.rounds
}

const hotKeys = 64

// peers are those that do the row, if they can.
func (r Row) peers() []maker {
	switch {
	case r.Attack:
		return attackPeers
	case r.Hot && r.Apart:
		return creditPeers
	case r.Hot:
		return hotPeers
	}
	return networkPeers
}

// keyCount is how many of the keys that are asked for the row has.
func (r Row) keyCount(c *config) int {
	switch {
	case r.Attack:
		return attackers
	case r.Hot:
		return hotKeys
	case r.History:
		return c.pastOf
	}
	return c.keys
}

// makeKeys makes names of one length.
func makeKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%06d", i)
	}
	return keys
}

const orderLength = 1 << 16

// makeOrder draws the keys that callers ask for, as indices. It is drawn once, so that drawing takes no time later;
// callers begin at different places of it and go round.
func makeOrder(keys int, zipf bool, seed uint64) []uint32 {
	random := rand.New(rand.NewPCG(seed, 0))
	draw := func() uint64 { return random.Uint64N(uint64(keys)) }
	if zipf {
		draw = rand.NewZipf(random, 1.1, 1, uint64(keys-1)).Uint64
	}
	order := make([]uint32, orderLength)
	for i := range order {
		order[i] = uint32(draw())
	}
	return order
}
