package insight

import (
	"time"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
)

// Report is what a Handler serves: the Stats of its Recorder, and what the functions of its HandlerConfig return.
type Report struct {
	Time    time.Time `json:"time"`    // by this host's clock
	Started time.Time `json:"started"` // when the Recorder was made: another one than before is another process

	Stats

	Nodes  []Node       `json:"nodes,omitempty"`
	Router *RouterStats `json:"router,omitempty"`
	Lease  *lease.Stats `json:"lease,omitempty"`
	Dual   *dual.Stats  `json:"dual,omitempty"`
	Flag   *Flag        `json:"flag,omitempty"`
}

// Node is the state of a node of a router, as router.Router.Nodes returns it. This package doesn't link the router.
type Node struct {
	Group    string        `json:"group"`
	Node     string        `json:"node"`
	Role     string        `json:"role"`    // "primary" or "replica"
	Breaker  string        `json:"breaker"` // "closed", "open" or "half-open"
	Readable bool          `json:"readable"`
	Latency  time.Duration `json:"latency_nanos"` // of calls; 0 while there are none

	// LastHeartbeat is when the last answered heartbeat was sent, RTT its round trip, and Ahead how far the node's clock was ahead
	// of this host's. Without a heartbeat all are zero.
	LastHeartbeat time.Time     `json:"last_heartbeat,omitzero"`
	RTT           time.Duration `json:"rtt_nanos"`
	Ahead         time.Duration `json:"ahead_nanos"`

	// Age is for how long a replica may have had no contact with its primary.
	Age time.Duration `json:"age_nanos"`
}

// RouterStats counts what a router did while its topology changed. A router.Stats converts to it: this package doesn't link the
// router.
type RouterStats struct {
	Handovers int64 `json:"handovers"`  // handovers of a key to the group that owns it now
	Redirects int64 `json:"redirected"` // calls that were redirected because the key had moved
	Bounded   int64 `json:"bounded"`    // decisions without the counts of a group that was unreachable
}

// Flag is the state of a feature flag, as a featureflag.State has it. This package doesn't link package featureflag.
type Flag struct {
	Name    string  `json:"name"`
	Percent float64 `json:"percent"` // of keys for which it is on, 0 to 100
	Version uint64  `json:"version"`
	Reason  string  `json:"reason"`
	Stale   bool    `json:"stale"`
	Error   string  `json:"error"` // of the latest load; empty if that succeeded
}

func (cfg *HandlerConfig) report(r *Recorder, top int) Report {
	show := r.KeyHash
	if cfg.ClearKeys {
		show = inClear
	}
	all := Report{Started: r.started, Stats: r.stats(top, show)}
	if cfg.Nodes != nil {
		all.Nodes = cfg.Nodes()
	}
	all.Router = call(cfg.Router)
	all.Lease = call(cfg.Lease)
	all.Dual = call(cfg.Dual)
	all.Flag = call(cfg.Flag)
	all.Time = time.Now()
	return all
}

// call returns what f returns, or nil without f.
func call[T any](f func() T) *T {
	if f == nil {
		return nil
	}
	return new(f())
}
