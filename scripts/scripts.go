// Package scripts holds the Lua scripts that run on the Redis primary of a key, and the Go that encodes their arguments and
// decodes their replies. The header of each script describes both; a file of Go stands beside it. A script touches the
// one key it is given, so it is safe on Redis Cluster; takes, takesfixed and charge get several keys of one server. No script reads the server's clock: now
// is an argument, so that a test's clock works on a real server.
//
// # Encoding
//
// All limits of a policy are stored in one string value as text (see state.lua). It was chosen by measurement on
// redis-server 7.0.15: a take within a full window by three short scripts with the same checks, and by take.lua;
// server time of one EVALSHA, medians of seven interleaved runs, and MEMORY USAGE of the key (go run ./encoding in
// bench/, one core of an Intel Xeon):
//
//	                 one fixed limit     two fixed, one sliding of 60 sub-buckets
//	hash              5.7 us   104 B      74.7 us   1336 B
//	packed string     4.8 us    88 B      32.0 us    952 B
//	text              5.8 us    88 B      16.1 us    376 B
//	take.lua         10.0 us    88 B      22.2 us    376 B
//
// Packed is as fast for one limit. For many, text wins: it keeps the sum and the newest sub-bucket in front, so that
// a take within that one parses no list. Text is also what an operator can read with GET. What take.lua adds is
// floors, buckets, entries of other policies, and the check that what is stored is a state.
//
// Takes without these go through takes.lua and takesfixed.lua, which serve several keys in one call; a single one under one
// fixed limit through takeone.lua. Server time of one take,
// in us (2000 keys at random, medians of seven interleaved runs; for the last two lines of two fixed limits and a sliding
// one, take.lua costs 18 and 22):
//
//	                                    single   8 together   32 together
//	one fixed limit                        5.4          2.8           2.4
//	two fixed, one sliding of one         11.5          5.7           4.9
//	two fixed, one sliding of sixty       12.6          6.7           5.7
package scripts

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed state.lua
	stateLua string
	//go:embed join.lua
	joinLua string
	//go:embed take.lua
	take string
	//go:embed takes.lua
	takes string
	//go:embed takesfixed.lua
	takesFixed string
	//go:embed takeone.lua
	takeOne string
	//go:embed charge.lua
	charge string
	//go:embed refund.lua
	refund string
	//go:embed reset.lua
	reset string
	//go:embed seal.lua
	seal string
	//go:embed publish.lua
	publish string
)

// Script is the source of a script and the SHA-1 that EVALSHA names it by.
type Script struct {
	Name, Source, SHA string
}

// The scripts; each file says what it does.
var (
	Take       = script("take", joinLua+"\n"+take)
	Takes      = plain("takes", takes)
	TakesFixed = plain("takesfixed", takesFixed)
	TakeOne    = plain("takeone", takeOne)
	Charge     = script("charge", joinLua+"\n"+charge)
	Refund     = script("refund", refund)
	Reset      = script("reset", reset)
	Seal       = script("seal", seal)
	Publish    = plain("publish", publish)
)

// All lists every script, to load them ahead of use.
var All = []Script{Take, Takes, TakesFixed, TakeOne, Charge, Refund, Reset, Seal, Publish}

func script(name, source string) Script { return plain(name, stateLua+"\n"+source) }

// plain returns a script without state.lua.
func plain(name, source string) Script {
	sum := sha1.Sum([]byte(source))
	return Script{Name: name, Source: source, SHA: hex.EncodeToString(sum[:])}
}
