package router

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
)

// Config configures a Router. The zero value is ready to use.
type Config struct {
	// Redis is the template of every node's options, for credentials, TLS or the database; Addr is ignored. Options that would
	// count twice or outlive a deadline are overridden, see redisbackend.Open. Nil: go-redis's defaults. Only for Open.
	Redis *redis.Options

	// Sentinel is the template of the options for sentinels, for their credentials and TLS; Addr and DB are ignored. Sentinels
	// use nothing of Redis. Nil: go-redis's defaults. Only for Open.
	Sentinel *redis.Options

	// Backend configures every node that Open makes; the timeout of a call is there. Of nodes that Node or the caller of New makes,
	// Timeout says what theirs is, for the bounds of reads and heartbeats; New refuses the other fields. Timeout must not be
	// negative, and at most limit.MaxWindow.
	Backend redisbackend.Config

	// Node makes the backend of a node, in place of redisbackend.Open with Redis and Backend. It isn't used for a Redis
	// Cluster. Calls about keys that move still take no longer than Backend.Timeout (zero: 250 ms): set that to the nodes' own.
	// Keys move only between nodes that are a backend.Sealer; refunds, resets and the calls of a dual.Dual need a
	// backend.Seeder, too. Only for Open.
	Node func(address string) (backend.Backend, error)

	// Settle is how long processes may differ on the topology after a change, including calls in progress. Keys that change their
	// owner are handed over for that long and the longest window of a policy. In a dual.Dual it must be as long as both Settles
	// together. At most twice limit.MaxWindow. Zero: 10 minutes.
	Settle time.Duration

	// Drain is how long groups that the topology no longer has are kept, for their counts: set it to the longest window of any
	// policy and Settle. A policy with longer windows that was used by then keeps them longer. A policy first used later starts
	// with empty counts on moved keys, and its decisions are Bounded; so does any policy whose windows outlast 63 changes of the
	// topology. At most twice limit.MaxWindow. Zero: 25 hours.
	Drain time.Duration

	// TopologyKeys are the public keys of the publishers of topologies; see [Topology.Sign]. With keys, a topology that a server
	// holds is taken over only if it is signed with one of them, and this process publishes only signed topologies. Topologies from
	// Open, Update and WatchFile need no signature, but one that they have must be valid. Give an unsigned topology to all
	// processes: those with an older one don't learn of it, and fail for keys that have moved (event TopologyUnpublished). Nil: no
	// signature is needed. Only for Open.
	TopologyKeys []ed25519.PublicKey

	// AllowedAddresses are the servers that a published topology may name, besides those that this process knows from its
	// own as the same (a node, a node of a cluster, or a sentinel of the same master): host names, "*." and a domain, IP
	// addresses, prefixes such as 10.0.0.0/8, or "*" for any. Ports don't matter. All with write access to a server can publish a
	// topology, and each server that it names gets the credentials of Redis. So do the servers that its sentinels or clusters name,
	// which this list doesn't restrict. Nil: with TopologyKeys all servers, otherwise no unknown one. Only for Open.
	AllowedAddresses []string

	// Seed is the seed of the ring. Only for New; a topology has its own.
	Seed uint64

	// MaxLag is how long ago a replica may have heard of its primary and still be read. An idle primary sends to its replicas only
	// every 10 s (repl-ping-replica-period), and servers report the age in whole seconds, so a healthy pair is up to 11 s
	// apart, and 12 s until the next heartbeat. Zero: 15 s. Negative: no bound.
	MaxLag time.Duration

	// ReadTimeout is how long a peek or a load may take, all tries together; an earlier deadline of the caller's
	// context wins. Each try on a replica gets half of the time that is left, the primary the rest. Zero: Backend.Timeout, or
	// 250 ms where that is zero, too. Must not be negative, and at most limit.MaxWindow.
	ReadTimeout time.Duration

	// Heartbeat is the time between two heartbeats of a node, give or take a fifth. While a node is unavailable they are sent ten
	// times as often, but no more than about ten a second. Zero: 1 s. Negative: off. Then Redis replicas are not read, since their
	// lag is unknown; only failing calls open a breaker; and a read doesn't detect that a primary has become a replica. At most
	// limit.MaxWindow.
	Heartbeat time.Duration

	// TripAfter is how many calls to a node must fail in a row to open its breaker. It also opens when half of the
	// calls of the last ten seconds have failed, if there were at least 20. Zero: 5. Negative: breakers never open.
	TripAfter int

	// OpenFor is how long a breaker stays open before one call is let through as a trial, give or take a fifth. Zero: 1 s. Must not
	// be negative, and at most limit.MaxWindow.
	OpenFor time.Duration

	// OnEvent is called with events, one at a time, by a goroutine of its own. No call waits for it; if it falls far behind,
	// events are dropped and counted. It must not call Close, which waits for it. If nil, there are no events.
	OnEvent func(Event)
}

const (
	defaultMaxLag      = 15 * time.Second
	defaultReadTimeout = 250 * time.Millisecond // as redisbackend.Config has it
	defaultHeartbeat   = time.Second
	defaultTripAfter   = 5
	defaultOpenFor     = time.Second
	defaultSettle      = 10 * time.Minute
	defaultDrain       = 25 * time.Hour
)

func (c Config) withDefaults() Config {
	c.MaxLag = cmp.Or(c.MaxLag, defaultMaxLag)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, max(c.Backend.Timeout, 0), defaultReadTimeout) // a negative one is refused by its own name
	c.Heartbeat = cmp.Or(c.Heartbeat, defaultHeartbeat)
	c.TripAfter = cmp.Or(c.TripAfter, defaultTripAfter)
	c.OpenFor = cmp.Or(c.OpenFor, defaultOpenFor)
	c.Settle = cmp.Or(c.Settle, defaultSettle)
	c.Drain = cmp.Or(c.Drain, defaultDrain)
	return c
}

// clone returns a copy that shares no slice and no options with the caller's value.
func (c Config) clone() Config {
	if c.Redis != nil {
		options := *c.Redis
		c.Redis = &options
	}
	if c.Sentinel != nil {
		options := *c.Sentinel
		c.Sentinel = &options
	}
	c.AllowedAddresses, c.TopologyKeys = slices.Clone(c.AllowedAddresses), slices.Clone(c.TopologyKeys)
	for i, key := range c.TopologyKeys {
		c.TopologyKeys[i] = slices.Clone(key)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.validateTrust()}
	between := func(field string, d, most time.Duration) {
		if d < 0 {
			errs = append(errs, &ConfigError{Field: field, Value: d.String(), Bound: "must not be negative"})
		}
		if d > most {
			errs = append(errs, &ConfigError{Field: field, Value: d.String(), Bound: "must be at most " + most.String()})
		}
	}
	between("Backend.Timeout", c.Backend.Timeout, limit.MaxWindow) // multiples of it are used
	between("ReadTimeout", c.ReadTimeout, limit.MaxWindow)
	between("Heartbeat", max(c.Heartbeat, 0), limit.MaxWindow)
	between("OpenFor", c.OpenFor, limit.MaxWindow)
	between("Settle", c.Settle, 2*limit.MaxWindow) // a window is added to it
	between("Drain", c.Drain, 2*limit.MaxWindow)
	if c.Drain >= 0 && c.Drain < c.Settle {
		errs = append(errs, &ConfigError{Field: "Drain", Value: c.Drain.String(), Bound: "must not be less than Settle"})
	}
	return errors.Join(errs...)
}
