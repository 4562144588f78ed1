package redisbackend

import (
	"cmp"
	"errors"
	"time"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/storedname"
)

// Config configures a Redis. The zero value is ready to use.
type Config struct {
	// Prefix starts the name of every stored key: [A-Za-z0-9_:.-]{1,16}. Empty: "sl:".
	Prefix string

	// Timeout is how long one call may take, the wait for a connection included; an earlier deadline of the
	// caller's context wins. Zero: 250 ms. Must not be negative.
	Timeout time.Duration

	// Pipelines is how many round trips may be under way at once, to each shard of a Redis Cluster. Further calls share the
	// next one. Zero: 2.
	Pipelines int

	// Queue is how many calls may wait for a round trip, to each shard of a Redis Cluster; further calls fail with
	// ErrOverloaded. Zero: 4096.
	Queue int

	// Reload is how often the client of a Redis Cluster that was made here asks which node has which slots; without a redirect
	// it notices a failover only then. Zero: 1 s.
	Reload time.Duration

	// Now replaces the clock, for tests; several goroutines call it at once. If nil, the time is that of the server's clock
	// when it was last read, and what has passed since by this process's monotonic clock. The wall clock of this
	// host decides nothing. Of a Redis Cluster the clock is that of the primary which has the slot of the prefix and
	// "topology"; another primary's is used only once that has been silent for 30 s, and then the time may step by
	// what they differ.
	Now func() time.Time
}

const (
	defaultTimeout   = 250 * time.Millisecond
	defaultPipelines = 2
	defaultQueue     = 4096
	defaultReload    = time.Second
)

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, storedname.DefaultPrefix)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Pipelines = cmp.Or(c.Pipelines, defaultPipelines)
	c.Queue = cmp.Or(c.Queue, defaultQueue)
	c.Reload = cmp.Or(c.Reload, defaultReload)
	return c
}

func (c Config) validate() error {
	errs := fielderrors.List{Prefix: "redis: "}
	fielderrors.NotNegative(&errs, "Timeout", c.Timeout)
	fielderrors.NotNegative(&errs, "Reload", c.Reload)
	fielderrors.NotNegative(&errs, "Pipelines", c.Pipelines)
	fielderrors.NotNegative(&errs, "Queue", c.Queue)
	return errors.Join(storedname.CheckPrefix("redis: Prefix", c.Prefix), errs.Err())
}
