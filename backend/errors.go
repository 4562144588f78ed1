package backend

import (
	"errors"
	"strings"
)

// ErrClosed is returned by every call after Close.
var ErrClosed = errors.New("sluice: closed")

// ErrUnsupported is returned if a backend, or one that it holds, lacks an optional operation.
var ErrUnsupported = errors.New("sluice: operation not supported by this backend")

// ErrEvicted is the cause of a decision that is not exact because a full memory.Memory evicted keys, or because a Redis server
// whose maxmemory-policy is not noeviction has so little room left that it may be doing so.
var ErrEvicted = errors.New("sluice: memory is full, and keys whose windows are not over were evicted or may have been")

// ErrCountsLost is the cause of a decision that is not exact because its server may have lost counts whose windows are not
// over: it restarted, was promoted, was emptied or has evicted keys, or it doesn't say which process it is.
var ErrCountsLost = errors.New("sluice: the server may have lost counts: it restarted, was promoted, was emptied or evicted keys")

// ErrReplicaMayLag is the cause of a result that is not exact because it is a replica's, which may lag behind its
// primary.
var ErrReplicaMayLag = errors.New("sluice: answered by a replica, which may lag behind its primary")

// ErrBucketLeased is the cause of a decision that is not exact because it was admitted from a lease on a token bucket,
// whose bound grows by the lease.
var ErrBucketLeased = errors.New("sluice: admitted from a lease on a token bucket")

// ErrOnCredit is the cause of a decision that is not exact because it was made by a lease.Lease that admits requests before they
// are charged: see lease.BoundError, which wraps it.
var ErrOnCredit = errors.New("sluice: requests are admitted on credit")

// ErrNotHandedOver is the cause of a decision that is not exact because the counts of another place are missing: that which a key
// comes from, by a dual.Dual or a change of the topology, or, of a peek, that which it has left to under an unknown topology.
var ErrNotHandedOver = errors.New("sluice: decided without the counts of another place of the key")

// ErrOverloaded is in the chain of an [*Error] of kind Unavailable: too many calls were waiting for the server. Nothing
// was sent.
var ErrOverloaded = errors.New("sluice: too many calls are waiting for the server")

// Kind is what an [Error] means for the caller.
type Kind uint8

const (
	// Unavailable: the server is down, unreachable, too slow or not able to serve. Another try may succeed.
	Unavailable Kind = iota + 1
	// Interrupted: the caller's own context ended first. It says nothing about the server.
	Interrupted
	// Misconfigured: the server rejects calls, or is rejected: credentials, permissions, a certificate that one side doesn't
	// accept, a foreign value at the key, a Memcached without room for the item. Retries fail until an operator fixes it.
	Misconfigured
	// Corrupt: what is stored at the key is not a state.
	Corrupt
	// Contended: too many writers at one key; nothing was charged.
	Contended
)

func (k Kind) String() string {
	names := [...]string{"error", "unavailable", "interrupted", "misconfigured", "corrupt", "contended"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// Error is a call without a verdict. It never holds a key.
type Error struct {
	// Op is the operation: "take", "peek", "load", "refund", "charge", "reset", "grant", "seed", "seal", "ping", "publish" or
	// "published"; of a backend that holds others also "move", a handover, and "route", the choice of a group.
	Op   string
	Node string // the server's address or name; empty for memory
	Kind Kind

	// MayHaveCharged is false if nothing was charged or refunded, certainly, so that the call may be retried. True means the
	// outcome is not known; the call is counted at most once.
	MayHaveCharged bool

	Err error // the cause
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("sluice: ")
	b.WriteString(e.Op)
	if e.Node != "" {
		b.WriteString(" at ")
		b.WriteString(e.Node)
	}
	b.WriteString(": ")
	b.WriteString(e.Kind.String())
	if e.MayHaveCharged {
		b.WriteString(", may have been counted")
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }
