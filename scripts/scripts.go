// Package scripts holds the Lua scripts that run on the Redis primary of a key, one file for each operation, with
// KEYS, ARGV and reply in its header. Each touches the one key it is given, so all are safe on Redis Cluster, and
// none calls the server's clock: now is an argument, so that a test's clock works on a real server.
//
// # Encoding
//
// All limits of a policy are stored in one string value as text (see state.lua). This was measured on redis-server
// 7.0.15 against a hash (a field for each count) and a string packed with struct.pack, each with the same checks,
// by a take in a full window; microseconds of server time for one EVALSHA and MEMORY USAGE of the key, medians of
// five interleaved runs (go run ./encoding in bench/):
//
//	                       one fixed limit      two fixed, one sliding of 60
//	hash                     9.0 us   104 B        83 us   1336 B
//	packed string            7.5 us    88 B        36 us    952 B
//	text                     8.3 us    88 B        21 us    376 B
//	redis_rate's script     11.1 us    88 B         -        -
//
// Packed is as fast for one limit, but text keeps a running sum in front of the sub-buckets, newest first, so that
// a take within the newest one parses no list. Text is also what an operator can read with GET.
package scripts

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed state.lua
	state string
	//go:embed take.lua
	take string
	//go:embed refund.lua
	refund string
	//go:embed reset.lua
	reset string
)

// Script is the source of a script and the SHA-1 that EVALSHA names it by.
type Script struct {
	Name, Source, SHA string
}

// The scripts; each file says what it does.
var (
	Take   = script("take", take)
	Refund = script("refund", refund)
	Reset  = script("reset", reset)
)

// All lists every script, to load them ahead of use.
var All = []Script{Take, Refund, Reset}

func script(name, source string) Script {
	source = state + "\n" + source
	sum := sha1.Sum([]byte(source))
	return Script{Name: name, Source: source, SHA: hex.EncodeToString(sum[:])}
}
