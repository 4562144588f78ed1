// Package scripts holds the Lua scripts that run on the Redis primary of a key, and the Go that encodes their arguments and
// decodes their replies. The header of each script describes both; a file of Go stands beside it. A script touches the one key
// it is given, so it is safe on Redis Cluster; takes, takesfixed and charge get several keys of one server. No script reads the
// server's clock: now is an argument, so that a test's clock works on a real server.
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
// limit through takeone.lua, or takebucket.lua. Server time of one take, in us (2000 keys at random, medians of seven
// interleaved runs; for the last two lines of two fixed limits and a sliding one, take.lua costs 18 and 22):
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
	//go:embed takebucket.lua
	takeBucket string
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

	source, sha any // the same, converted once
}

// answersEach reports whether the reply has a part for each key, which begins with a space.
func (s *Script) answersEach() bool { return s == &Takes || s == &TakesFixed }

// AppendCall appends the command that calls the script, before the keys: by the script's SHA-1, or with its source.
func (s *Script) AppendCall(args []any, keys int, load bool) []any {
	if load {
		return append(args, "eval", s.source, keys)
	}
	return append(args, "evalsha", s.sha, keys)
}

// The scripts; each file says what it does.
var (
	Take       = script("take", joinLua+"\n"+take)
	Takes      = plain("takes", takes)
	TakesFixed = plain("takesfixed", takesFixed)
	TakeOne    = plain("takeone", takeOne)
	TakeBucket = plain("takebucket", takeBucket)
	Charge     = script("charge", joinLua+"\n"+charge)
	Refund     = script("refund", refund)
	Reset      = script("reset", reset)
	Seal       = script("seal", seal)
	Publish    = plain("publish", publish)
)

// All lists every script, to load them ahead of use.
var All = []Script{Take, Takes, TakesFixed, TakeOne, TakeBucket, Charge, Refund, Reset, Seal, Publish}

func script(name, source string) Script { return plain(name, stateLua+"\n"+source) }

// plain returns a script without state.lua.
func plain(name, source string) Script {
	sum := sha1.Sum([]byte(source))
	sha := hex.EncodeToString(sum[:])
	return Script{Name: name, Source: source, SHA: sha, source: source, sha: sha}
}
