package redisbackend

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// continuity tracks whether a server still has all counts that were made on it. The server is asked on every new connection,
// before the first decision over it: a restart breaks all older connections. Promotions, evictions and flushes break none;
// for these a [marker] is stored on the server. A marker that is missing, or names another server process, was lost or
// came from another server. Processes that start after a loss also learn of it by the marker.
//
// A server that may evict is trusted only while it has more room than can be filled until it is asked again.
type continuity struct {
	client atomic.Pointer[redis.Client]

	lostAt     atomic.Int64          // the latest loss, by the clock that decides, Unix microseconds; 0 if none is known
	exactUntil atomic.Int64          // when the server may begin to evict, likewise
	askedAt    atomic.Int64          // when it was asked last, likewise
	refreshing atomic.Bool           // whether it is being asked in the background
	replica    atomic.Bool           // whether it was one when it was asked last
	unwritten  atomic.Pointer[write] // what the marker has to be; nil if it is that

	// The connections of a client that the caller made are only counted; the server is asked after the first reply.
	dialled, asked atomic.Int64
	asking         chan struct{} // holds one while a caller asks

	mu     sync.Mutex // guards what follows
	id     string     // the server process and how many keys it has evicted; empty before that is known
	since  int64      // when the latest loss was, as far as the server said which process it is; 0 if none is known
	nonce  string     // of the marker that is known to be there; empty if none is
	own    string     // begins the nonces of the markers that this process writes
	writes int        // how many it has had to write
	before string     // the replication that it was promoted from, in a cluster

	// Of a cluster's, guarded by servers.mu:
	replID string    // the replication of which it was the primary when it was asked last
	until  time.Time // the deadline of the call that came last
}

const (
	markerName = "server" // follows the prefix in the name of the key that holds the marker

	// askAgain is how often a server is asked. It is longer than the time between two heartbeats of a router, which also ask.
	askAgain = 1250 * time.Millisecond

	// growth is the most, in bytes per second, that a server's memory is assumed to grow.
	growth = 1 << 30

	unknownLoss = math.MaxInt64 / 2 // lostAt of a server that doesn't say which process it is
)

func newContinuity() *continuity {
	c := &continuity{asking: make(chan struct{}, 1), own: strconv.FormatUint(rand.Uint64(), 36) + "."}
	c.exactUntil.Store(math.MaxInt64)
	return c
}

// cause is why a decision at a moment is not exact; nil if it is.
func (c *continuity) cause(nowMicros int64, p *limit.Policy) error {
	if until := c.exactUntil.Load(); nowMicros >= until || until < math.MaxInt64 && c.askedAfter(nowMicros) {
		return backend.ErrEvicted
	}
	if lost := c.lostAt.Load(); lost != 0 && nowMicros-lost < state.Horizon(p).Microseconds() {
		return backend.ErrCountsLost
	}
	return nil
}

// askedAfter reports whether the server was asked after a moment, by more than calls overlap: its clock was set back. How long
// ago it was asked is then not known.
func (c *continuity) askedAfter(nowMicros int64) bool {
	return c.askedAt.Load()-nowMicros > askAgain.Microseconds()
}

// marker is what is stored on a server, as "id since nonce".
type marker struct {
	id    string // the server process, and how many keys it has evicted, "process:evicted"
	since int64  // since when counts are complete, Unix microseconds; 0 from the beginning
	nonce string // no two writings have the same: two processes that know no loss write the same otherwise
}

// evicted reports whether the server process with an id has evicted keys.
func evicted(id string) bool { return !strings.HasSuffix(id, ":0") }

func (m *marker) String() string { return m.id + " " + strconv.FormatInt(m.since, 10) + " " + m.nonce }

// parseMarker reads a marker. The id of an unreadable one is no server's.
func parseMarker(text string) marker {
	fields := strings.Split(text, " ")
	if len(fields) != 3 || fields[2] == "" {
		return marker{id: "unreadable"}
	}
	since, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return marker{id: "unreadable"}
	}
	return marker{fields[0], since, fields[2]}
}

// write is a marker that has to be written.
type write struct {
	marker
	absent bool // only where none is: another process may know more
}

// observe takes in what a server says of itself, and sets the marker that has to be written, if any.
//
// Counts were lost if the server was a replica when it was asked before, or was promoted in its cluster, and by its marker:
//
//	the marker          counts were lost
//	can't be read       if another process, or another number of evictions, is known; or none, and this one has evicted
//	isn't there         likewise; or one is known to have been there: it went with the counts
//	of another id       yes: it was restored or replicated with counts of another process, or keys were evicted since
//	of this id, and ... if another id is known and since is 0: who wrote it knew no other, and began after the loss;
//	                    or if another writing is known, and this one is since no later moment: the known one has gone
//	                    with the counts, and who wrote this one did not know it
//	of this id, else    no, but what was before since
func (c *continuity) observe(says *identity, promoted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.askedAt.Store(says.nowMicros)
	until := int64(math.MaxInt64)
	if room, may := says.evicts(); may {
		until = 0
		if lasts := room / (growth / 1_000_000); lasts > askAgain.Microseconds() {
			until = says.nowMicros + lasts
		}
	}
	c.exactUntil.Store(until)
	if says.id == "" {
		c.lostAt.Store(unknownLoss) // until it says so again
		return
	}
	if !says.primary {
		c.replica.Store(true)
		return
	}
	since := c.since
	mark := &says.mark
	fresh := c.id == ""
	other := !fresh && c.id != says.id
	lost := c.replica.Swap(false) || promoted
	switch {
	case !says.marks:
		lost = lost || other || fresh && evicted(says.id)
	case mark.id == "":
		lost = lost || other || evicted(says.id) || says.knew != ""
	case mark.id != says.id:
		lost = true
	case other && mark.since == 0 || c.replacedLocked(says):
		lost = true
	default:
		since = max(since, min(mark.since, says.nowMicros))
	}
	if lost {
		since = says.nowMicros
	}
	switch {
	case lost:
		c.nonce = ""
	case mark.id != "" && mark.nonce != says.knew: // otherwise a later one may be known by now
		c.nonce = mark.nonce
	}
	behind := mark.since < since
	if mark.id == "" { // and the answer may be older than a marker that is known by now
		behind = c.nonce == ""
	}
	var unwritten *write
	if says.marks && (lost || behind) {
		c.writes++
		unwritten = &write{marker{says.id, since, c.own + strconv.Itoa(c.writes)}, !lost && mark.id == ""}
	}
	c.id, c.since = says.id, since
	c.unwritten.Store(unwritten)
	c.lostAt.Store(since)
}

// replacedLocked reports whether the marker isn't the known one, and was written by a process that didn't know that one.
func (c *continuity) replacedLocked(says *identity) bool {
	mark := &says.mark
	return says.knew != "" && mark.nonce != says.knew && mark.nonce != c.nonce && !strings.HasPrefix(mark.nonce, c.own) &&
		mark.since <= c.since
}

// found takes in the marker that was there after a write. Another one is not written where none is: it would hide that this one
// has gone.
func (c *continuity) found(m marker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.id != c.id {
		return
	}
	c.nonce = m.nonce
	if w := c.unwritten.Load(); w != nil && w.absent {
		c.unwritten.CompareAndSwap(w, nil)
	}
}

// knows returns the server process, and the nonce of the marker that is known to be there.
func (c *continuity) knows() (process, nonce string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	process, _, _ = strings.Cut(c.id, ":")
	return process, c.nonce
}

// promotedFrom sets the replication that a server belonged to before it was promoted, and reports whether that is new.
func (c *continuity) promotedFrom(replID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.before != replID
	c.before = replID
	return news
}
