package backend

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// shards are the pipeliners of a Redis Cluster, a set of its own for each primary: what shares a lane, a pipeline or a place in a
// queue is for the same server, so that a shard which hangs holds up its own keys only. Sent through the cluster client a
// pipeline would go to all shards at once, and not be back before the slowest of them, and the first call would ask any of
// them for its commands. So the cluster client says which node has a key, and all is sent through the client of that node.
//
// A call goes where the client's map of slots says when it joins the queue. If the slot has moved meanwhile, the server
// answers MOVED, and the call joins the queue of another.
type shards struct {
	client        *redis.ClusterClient
	guard         *callguard.Guard
	open          func(node *redis.Client) *shard
	askRedirector askRedirector
	mapped        atomic.Bool    // whether the client has a map of the slots: to find a node costs no round trip
	running       sync.WaitGroup // counts questions for the time

	horizon atomic.Int64 // the longest of a policy that was decided by, in nanoseconds

	mu      sync.Mutex // guards what follows
	all     map[*redis.Client]*shard
	servers map[string]*continuity // by address
}

// shard is a primary of a cluster, or another node of it that had to say which one it is.
type shard struct {
	pipeliner pipeliner
	until     time.Time // the deadline of the call that came last; guarded by shards.mu
}

// gone is how long after its last call a shard is forgotten, when another one comes: nobody has its lanes any more. If it
// is still there, it gets new ones.
const gone = time.Minute

// run runs an evalCall at the shard of its key, wherever that goes meanwhile. It returns the evalCall that was run last, which the
// caller has to free in place of e.
func (s *shards) run(ctx context.Context, deadline time.Time, e *evalCall) (last *evalCall, by *continuity, reply string, err error) {
	reply, err = s.follow(ctx, deadline, func() (string, error) {
		if last != nil {
			e = last.retry()
			last.release()
		}
		last = e
		l, server, err := s.find(ctx, deadline, e.Key)
		if err != nil {
			return "", err
		}
		by = server
		return l.run(ctx, deadline, e)
	}, func(address string) (string, error) {
		// The script's source goes along: an unknown script would need a second try. Of a node that takes over slots it
		// isn't asked whether it lost counts: it has none yet.
		return s.askRedirector.ask(ctx, deadline, address, append([]any{"eval", e.script.Source, 1, e.Key}, e.args...)...)
	})
	return last, by, reply, err
}

// get reads a key. It also returns who has it.
func (s *shards) get(ctx context.Context, deadline time.Time, key string) (by *continuity, reply string, err error) {
	reply, err = s.follow(ctx, deadline, func() (string, error) {
		node, err := s.client.MasterForKey(ctx, key)
		if err != nil {
			return "", err
		}
		s.mapped.Store(true)
		s.mu.Lock()
		by = s.serverLocked(node, deadline)
		s.mu.Unlock()
		return node.Get(ctx, key).Result()
	}, func(address string) (string, error) {
		return s.askRedirector.ask(ctx, deadline, address, "get", key)
	})
	return by, reply, err
}

// maxMoves is how often a call follows a slot that moves; what was answered MOVED did not run. The client looks for the new
// owner at most every 200 ms, and the tries take 280 ms in all.
const maxMoves = 8

// follow makes a call, goes where ASK says, and makes the call once more after MOVED.
func (s *shards) follow(ctx context.Context, end time.Time, call func() (string, error),
	ask func(address string) (string, error)) (string, error) {
	for move := 0; ; move++ {
		reply, err := call()
		if address, asked := redis.IsAskError(err); asked {
			reply, err = ask(address)
		}
		if err == nil {
			return reply, nil
		}
		_, moved := redis.IsMovedError(err)
		if moved || redis.HasErrorPrefix(err, "READONLY") {
			s.client.ReloadState(ctx) // in the background
		}
		pause := time.Duration(move) * 10 * time.Millisecond
		if !moved || move == maxMoves || time.Until(end) <= pause || deadline.Sleep(ctx, pause) != nil {
			return reply, err
		}
	}
}

// find returns the lanes of a key's shard.
func (s *shards) find(ctx context.Context, deadline time.Time, key string) (*pipeliner, *continuity, error) {
	var node *redis.Client
	var err error
	if s.mapped.Load() {
		node, err = s.client.MasterForKey(ctx, key)
	} else {
		node, err = callguard.Do(ctx, s.guard, "ping", deadline, func(ctx context.Context) (*redis.Client, error) {
			return s.client.MasterForKey(ctx, key)
		})
	}
	if err != nil {
		return nil, nil, callguard.Unsent(err)
	}
	s.mapped.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[node]
	if found == nil {
		s.forgetLocked(deadline)
		found = s.open(node)
		s.all[node] = found
	}
	found.until = deadline
	return &found.pipeliner, s.serverLocked(node, deadline), nil
}

// forgetLocked forgets what is gone. What is known of a server is kept until no count of its keys is alive any more: if it is
// still there and has restarted, it takes that to know that they were lost.
func (s *shards) forgetLocked(deadline time.Time) {
	maps.DeleteFunc(s.all, func(_ *redis.Client, other *shard) bool { return deadline.Sub(other.until) > gone })
	horizon := time.Duration(s.horizon.Load())
	maps.DeleteFunc(s.servers, func(_ string, other *continuity) bool { return deadline.Sub(other.until)-horizon > gone })
}

// decided notes under which policy a key's counts are kept.
func (s *shards) decided(p *limit.Policy) {
	horizon := int64(state.Horizon(p))
	for known := s.horizon.Load(); horizon > known && !s.horizon.CompareAndSwap(known, horizon); known = s.horizon.Load() {
	}
}

// serverLocked is what is known of the server at a node's address.
func (s *shards) serverLocked(node *redis.Client, deadline time.Time) *continuity {
	address := node.Options().Addr
	c := s.servers[address]
	if c == nil {
		s.forgetLocked(deadline)
		c = newContinuity()
		if s.servers == nil {
			s.servers = make(map[string]*continuity)
		}
		s.servers[address] = c
	}
	if c.client.Swap(node) != node {
		c.dialled.Add(1) // it may have connections already
		node.AddHook(dialCounter{c})
	}
	c.until = deadline
	return c
}

// promoted reports whether a node has become the primary in place of one that this process has known.
func (s *shards) promoted(c *continuity, says *identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if says.primary {
		c.replID = says.replID
	}
	if !c.promotedFrom(says.before) || says.before == "" {
		return false
	}
	for _, other := range s.servers {
		if other.replID == says.before {
			return true
		}
	}
	return false
}

// doubt says why counts may be missing in a key's shard.
func (s *shards) doubt(key string, nowMicros int64, p *limit.Policy) error {
	if !s.mapped.Load() {
		return nil
	}
	node, err := s.client.MasterForKey(context.Background(), key) // the map has it, so it makes no call
	if err != nil {
		return nil
	}
	s.mu.Lock()
	c := s.servers[node.Options().Addr]
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.cause(nowMicros, p)
}

// time is that of the shard which says it first: one that hangs must not hide that others are there. Asked are those that
// were called, and any one: they may all be gone.
func (s *shards) time(ctx context.Context) (time.Time, error) {
	one, err := s.client.MasterForKey(ctx, strconv.Itoa(rand.Int()))
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	nodes := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	if !slices.Contains(nodes, one) {
		nodes = append(nodes, one)
	}
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, len(nodes))
	for _, node := range nodes {
		s.running.Go(func() {
			now, err := node.Time(ctx).Result()
			answers <- answer{now, err}
		})
	}
	var last answer
	for range nodes {
		if last = <-answers; last.err == nil {
			break
		}
	}
	return last.now, last.err
}

// close ends what is under way. Nobody may call anything else any more.
func (s *shards) close() error {
	for _, shard := range s.all {
		shard.pipeliner.close()
	}
	err := s.askRedirector.close()
	s.running.Wait()
	return err
}
