// Package redispipe sends script calls to Redis and shares round trips among concurrent callers. A call that finds a free
// connection is sent at once, by its caller's goroutine. Calls that come while all connections are busy wait in a
// queue and go together, in one pipeline, over the next connection that is free; takes under the same limits even share
// one script call, and so do charges. Charges come many at a time, and leave room for takes: few are in the queue or under way.
//
// A call that shares a round trip, or whose caller may leave before the reply, goes through these states:
//
//	          a connection takes it           the reply
//	waiting ----------------------> sent ----------------> answered
//	   |                             |
//	   | its caller leaves,          | its caller leaves, or its deadline passes
//	   | or its deadline passes      v
//	   +-------> abandoned        detached
//
// An abandoned call is never sent. The reply to a detached call is read and dropped, which saves the connection. Whoever
// moves a call to one of the last three states says how it ended.
//
// Nothing is sent twice unless the server's reply shows that the first call did nothing: NOSCRIPT, MOVED and ASK, a call
// for several keys that was refused as a whole, and keys that Takes leaves to Take.
package redispipe

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// ErrQueueFull is the error of a call that was not sent because too many were waiting.
var ErrQueueFull = errors.New("redispipe: too many calls are waiting")

// Reader reads from one Redis node, or from a Redis Cluster.
type Reader interface {
	// Get reads a key, or fails with redis.Nil. It also returns the client of the server that has the key; nil if that is not
	// known.
	Get(ctx context.Context, deadline time.Time, key string) (text string, by *redis.Client, err error)

	// Time reads the clock by which keys are judged.
	Time(ctx context.Context) (Reading, error)

	// Guard is what calls of Get, Time and Eval run under. Its Close comes before that of the Reader.
	Guard() *callguard.Guard

	// Close ends what is under way.
	Close() error
}

// Transport reads, and calls scripts.
type Transport interface {
	Reader

	// Eval calls a script. The call ends by the deadline and by the context's end.
	Eval(ctx context.Context, deadline time.Time, call Call) (Reply, error)

	// Node is the client of the server that has a key, as far as that is known without a call, else nil.
	Node(key string) *redis.Client

	// Batches reports whether takes may share a script call, which they can't across the slots of a cluster.
	Batches() bool
}

// Call is one script call on one key. Nothing in it may belong to the caller again once Eval has returned: the call may
// still be sent.
type Call struct {
	Script *scripts.Script
	Args   []any
	scripts.KeyTake

	// Plan is set for a take, or a charge with a Mark, that may share a call, which then needs no Args.
	Plan      *scripts.Plan
	Mark      *state.Mark // of a charge; nil for a take
	Policy    string      // the name of the policy, among which refusals are told apart
	NowMicros int64       // what the script is given
}

// Reply is the reply to a call.
type Reply struct {
	Text      string          // empty if the reply is no text
	NowMicros int64           // what the script was given: of calls that were sent together, the latest
	Shared    int             // how many keys were in the script call
	Script    *scripts.Script // that brought the reply; nil if that is not known
	Node      *redis.Client   // of the server that replied
}

// Reading is a reading of a server's clock.
type Reading struct {
	Now, Asked time.Time
	Borrowed   bool // from another server than the one whose clock decides
}

// Config configures a Transport.
type Config struct {
	Guard     callguard.Config // MaxCalls and IgnoresContext are set by the transport
	Pipelines int              // round trips under way at once, to each server
	Queue     int              // calls that may wait, for each server
	Now       func() int64     // Unix us; 0 before it is known. Takes that share a call are judged by the latest
	ClockKey  string           // of a cluster, the key whose primary has the clock that decides
}
