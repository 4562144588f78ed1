// Package control is what a router wants of a backend that is one of its nodes, beside counting: the health of its server, the
// clock by which it counts, and announcements, by which routers agree on a topology.
//
//	beat, err := control.HeartbeatOf(ctx, node)
//	there, err := control.Published(ctx, node)
//
// All of it is optional, as the capabilities in package backend are: without one its function fails with
// [backend.ErrUnsupported]. redisbackend.Redis has all, memory.Memory a clock and announcements, memcached.Memcached a clock.
// Applications need this package only for nodes of their own. Implementations are safe for concurrent use.
package control

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// Publisher stores one announcement for all processes that share it, such as the topology that routers must agree on.
type Publisher interface {
	// Published returns the stored announcement; its Version is 0 if there is none. It needs permission to read only.
	Published(ctx context.Context) (Announcement, error)

	// Publish stores an announcement, unless one of its version or a newer one is stored, and returns what is stored then:
	// without its text, unless it is newer than the given one.
	Publish(ctx context.Context, n Announcement) (Announcement, error)
}

// Announcement is what a [Publisher] stores.
type Announcement struct {
	Version int64  // from 1 to limit.MaxCount; 0 if there is no announcement
	Digest  string // of the text, without spaces: it distinguishes two texts of one version
	Text    string
}

// Validate rejects an announcement that can't be stored.
func (n *Announcement) Validate() error {
	switch {
	case n.Version < 1 || n.Version > limit.MaxCount:
		return &limit.Error{Field: "announcement: version", Value: strconv.FormatInt(n.Version, 10),
			Bound: fmt.Sprintf("must be from 1 to %d", limit.MaxCount)}
	case n.Digest == "" || strings.ContainsAny(n.Digest, " \t\n\v\f\r"): // what publish.lua takes for its end
		return &limit.Error{Field: "announcement: digest", Value: strconv.Quote(n.Digest), Bound: "must be a word"}
	case n.Text == "":
		return &limit.Error{Field: "announcement: text", Value: `""`, Bound: "must not be empty"}
	}
	return nil
}

// Clock is a backend that knows the time by which its counts are judged, in Unix microseconds; 0 before it knows.
type Clock interface {
	NowMicros() int64
}

// Heartbeater is a backend that reports the health of its server.
type Heartbeater interface {
	Heartbeat(ctx context.Context) (Heartbeat, error)
}

// Heartbeat is the health of a server.
type Heartbeat struct {
	RunID   string        // changes when the server process does
	Primary bool          // whether it takes writes
	LinkUp  bool          // of a replica: whether its link to the primary is up
	Age     time.Duration // of a replica: since it last heard of its primary
	Offset  int64         // the replication offset, in bytes
	Ahead   time.Duration // of the server's clock, before this host's wall clock; right to half of RTT
	RTT     time.Duration
}

// Published calls the backend's Published. Without one it fails with [backend.ErrUnsupported].
func Published(ctx context.Context, b backend.Backend) (Announcement, error) {
	if p, ok := b.(Publisher); ok {
		return p.Published(ctx)
	}
	return Announcement{}, backend.ErrUnsupported
}

// Publish calls the backend's Publish. Without one it fails with [backend.ErrUnsupported].
func Publish(ctx context.Context, b backend.Backend, a Announcement) (Announcement, error) {
	if p, ok := b.(Publisher); ok {
		return p.Publish(ctx, a)
	}
	return Announcement{}, backend.ErrUnsupported
}

// HeartbeatOf calls the backend's Heartbeat. Without one it fails with [backend.ErrUnsupported].
func HeartbeatOf(ctx context.Context, b backend.Backend) (Heartbeat, error) {
	if h, ok := b.(Heartbeater); ok {
		return h.Heartbeat(ctx)
	}
	return Heartbeat{}, backend.ErrUnsupported
}

// NowMicros calls the backend's NowMicros. Without one it is 0.
func NowMicros(b backend.Backend) int64 {
	if c, ok := b.(Clock); ok {
		return c.NowMicros()
	}
	return 0
}
