package main

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/backend/lease"
)

// Peer is a limiter under comparison. Take charges 1 to key; an error is no verdict.
type Peer interface {
	Take(ctx context.Context, key string) (allowed bool, err error)
	Close() error
}

// A historian can act as if it were another time, so that a key gets a past without waiting for it.
type historian interface {
	At(now time.Time) (Peer, error)
}

// Quota is at most Max in Window. A Precision asks for a sliding window with sub-buckets of that width, 0 for whatever the
// peer counts by.
type Quota struct {
	Max               int64
	Window, Precision time.Duration
}

// Setup is what every peer gets alike.
type Setup struct {
	Addr   string  // of the redis-server; unused by peers that only count in this process
	Quotas []Quota // one, or several for peers that can check several at once
	Conns  int     // connections at most
}

// clientOptions are those of every peer that takes a client of go-redis. The defaults apart from the handshake, which
// an old server refuses in parts, and the pool, whose default is the same number on two cores.
func (s Setup) clientOptions() *redis.Options {
	return &redis.Options{
		Addr: s.Addr, PoolSize: s.Conns, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

func (s Setup) client() *redis.Client { return redis.NewClient(s.clientOptions()) }

// A maker is an entry of the list of peers.
type maker struct {
	name string
	many bool // whether it checks several limits in one take
	open func(Setup) (Peer, error)
}

// The names that targets and tables refer to.
const (
	sluice             = "sluice"
	sluiceBackend      = "sluice-backend"
	sluiceLease        = "sluice-lease"
	sluiceLeaseBackend = "sluice-lease-backend"
	sluiceCredit       = "sluice-credit"
	redisRate          = "redis_rate"
	ulule              = "ulule"
	incr               = "incr"
	incrRueidis        = "incr-rueidis"
	github             = "github"
	carlson            = "carlson"
	sethvargo          = "sethvargo"
	rendezvous         = "rendezvous"
	sluiceHTTP         = "sluice-httplimit"
	httpRate           = "httprate"
	bareHandler        = "bare handler"
)

// networkPeers count in Redis. The two that only INCR are the floor: no limiter, no window, nothing to refuse with.
var networkPeers = []maker{
	{sluice, true, openSluice},
	{sluiceBackend, true, openSluiceBackend},
	{redisRate, false, openRedisRate},
	{ulule, false, openUlule},
	{"throttled", false, openThrottled},
	{"redisstore", false, openRedisstore},
	{"limiters", false, openLimiters},
	{github, false, openGitHub},
	{carlson, true, openCarlson},
	{incr, false, openIncr},
	{incrRueidis, false, openRueidis},
}

// hotPeers do the rows with few keys. To the others a key is like any other.
var hotPeers = []maker{
	{sluiceLease, true, overRedis(impatient)},
	{sluiceLeaseBackend, true, leaseBackend(impatient)},
	{sluice, true, openSluice},
	{sluiceBackend, true, openSluiceBackend},
	{redisRate, false, openRedisRate},
}

// attackPeers are attacked, as they are when nothing is set.
var attackPeers = []maker{
	{sluiceLease, false, fleetOf(overRedis(lease.Config{}))},
	{sluice, false, fleetOf(openSluice)},
	{redisRate, false, fleetOf(openRedisRate)},
}

// memoryPeers count in this process.
var memoryPeers = []maker{
	{sluice, true, openSluiceMemory},
	{sluiceBackend, true, openSluiceMemoryBackend},
	{sethvargo, false, openSethvargo},
	{"x/time/rate", false, openXTimeRate},
	{"ulule", false, openUluleMemory},
}

// hotMemoryPeers do the rows with few keys, for which those with leases need not ask Redis.
var hotMemoryPeers = slices.Concat([]maker{
	{sluiceLease, true, overRedis(thousandths)},
	{sluiceLeaseBackend, true, leaseBackend(thousandths)},
}, memoryPeers)

// only keeps the makers that are asked for; no names asks for all.
func only(makers []maker, names []string) []maker {
	if len(names) == 0 {
		return makers
	}
	return slices.DeleteFunc(slices.Clone(makers), func(m maker) bool { return !slices.Contains(names, m.name) })
}
