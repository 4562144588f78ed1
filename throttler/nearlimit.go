package throttler

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit"
)

// NearLimitData is a key that has little left of a limit.
type NearLimitData struct {
	Key    string
	Policy *limit.Policy // not to be changed
	Status Status        // of the limit, after the request that made it so
}

const (
	defaultNearLimit = 0.1
	nearLimitQueue   = 256
	nearLimitShards  = 16
	nearLimitSets    = 512 // in a shard
	nearLimitWays    = 8   // in a set
)

// nearLimits tells which keys have little left, each once for a limit and window. It remembers those that it has told of
// in a table of a fixed size. Where there is no room it tells of no more, rather than of the same ones again.
type nearLimits struct {
	share float64
	tell  func(NearLimitData)
	seed  maphash.Seed

	begin   sync.Once
	queue   chan NearLimitData // made by begin
	room    keyhash.Room       // in the queue
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	shards [nearLimitShards]struct {
		mu   sync.Mutex
		told []toldOf // made when it is needed; a set is nearLimitWays in a row
	}
}

// toldOf is a key's limit that has been told of until its window ends.
type toldOf struct {
	hash  uint64
	until int64 // Unix microseconds
}

// newNearLimits is nil if nobody wants to know.
func newNearLimits(cfg *Config) *nearLimits {
	if cfg.OnNearLimit == nil {
		return nil
	}
	n := &nearLimits{share: cfg.NearLimit, tell: cfg.OnNearLimit, seed: maphash.MakeSeed()}
	if n.share == 0 {
		n.share = defaultNearLimit
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// record looks at a request that was admitted.
func (n *nearLimits) record(req *backend.Request, d *Decision) {
	if n == nil {
		return
	}
	for s := range d.All() {
		if float64(s.Remaining) <= n.share*float64(s.Limit.Quota()) {
			n.near(req, s, d.At.UnixMicro())
		}
	}
}

func (n *nearLimits) near(req *backend.Request, s Status, now int64) {
	hash := n.hash(req, &s.Limit)
	shard := &n.shards[hash%nearLimitShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.told == nil {
		shard.told = make([]toldOf, nearLimitSets*nearLimitWays)
	}
	start := hash / nearLimitShards % nearLimitSets * nearLimitWays
	var free *toldOf
	for i := range nearLimitWays {
		way := &shard.told[start+uint64(i)]
		switch {
		case way.until <= now:
			free = way
		case way.hash == hash:
			return
		}
	}
	if free != nil && n.enqueue(NearLimitData{Key: req.Key, Policy: req.Policy, Status: s}) {
		*free = toldOf{hash: hash, until: s.ResetAt.UnixMicro()}
	}
}

// hash tells keys, policies and limits apart.
func (n *nearLimits) hash(req *backend.Request, l *limit.Limit) uint64 {
	var h maphash.Hash
	var id [64]byte
	h.SetSeed(n.seed)
	_, _ = h.Write(l.AppendID(id[:0]))
	_ = h.WriteByte(0)
	_, _ = h.WriteString(req.Policy.Name)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(req.Key)
	return h.Sum64()
}

// enqueue leaves it to the goroutine to tell, if there is room.
func (n *nearLimits) enqueue(data NearLimitData) bool {
	n.begin.Do(func() {
		n.queue = make(chan NearLimitData, nearLimitQueue)
		n.running.Go(n.work)
	})
	if !n.room.Enter(data.Key) {
		return false
	}
	data.Key = strings.Clone(data.Key) // it may be part of something large
	select {
	case n.queue <- data:
		return true
	default:
		n.room.Leave(data.Key)
		return false
	}
}

func (n *nearLimits) work() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case data := <-n.queue:
			n.tell(data)
			n.room.Leave(data.Key)
		}
	}
}

// close waits for what is being told, and drops what waits.
func (n *nearLimits) close() {
	if n == nil {
		return
	}
	n.begin.Do(func() {})
	n.cancel()
	n.running.Wait()
}
