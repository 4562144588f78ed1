package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// Running processes leave the topology that is in force as a notice on the primary of every group (package router tells
// them to). This is how the tool finds out what is in force, and how it brings something newer into force.

// publisher is where a group's notice is.
type publisher struct {
	Group string
	Node  string // the address of the primary; of a Redis Cluster those that the topology names
	*backend.Redis
	client redis.UniversalClient // of a Redis Cluster, which the backend doesn't close
	err    error                 // why it can't be found

	cluster *cluster
}

func (b *publisher) close() {
	if b.Redis != nil {
		_ = b.Redis.Close()
	}
	if b.client != nil {
		_ = b.client.Close()
	}
}

// publishers finds the primaries of groups. Sentinels are asked who it is.
func (s *cluster) publishers(ctx context.Context, groups []router.Group) ([]*publisher, func()) {
	all := make([]*publisher, len(groups))
	var asked sync.WaitGroup
	for i := range groups {
		asked.Go(func() { all[i] = s.publisher(ctx, &groups[i]) })
	}
	asked.Wait()
	return all, func() {
		for _, b := range all {
			b.close()
		}
	}
}

func (s *cluster) publisher(ctx context.Context, g *router.Group) *publisher {
	b := &publisher{Group: g.Name, Node: g.Primary, cluster: s}
	cfg := backend.RedisConfig{Prefix: s.prefix, Timeout: s.timeout}
	switch {
	case len(g.Cluster) > 0:
		client := s.redisCluster(g.Cluster)
		b.Node, b.client = strings.Join(g.Cluster, ","), client
		b.Redis, b.err = backend.NewRedis(client, cfg)
		return b
	case len(g.Sentinels) > 0:
		var seen sentinelView
		if seen, b.err = s.sentinelView(ctx, g); b.err != nil {
			b.Node = "sentinels"
			return b
		}
		b.Node = seen.primary
	}
	b.Redis, b.err = backend.OpenRedis(withAddress(s.node, b.Node), cfg)
	return b
}

// sentinelView is what sentinels say of a group.
type sentinelView struct {
	epoch    int64
	primary  string
	replicas []string
}

// sentinelView asks all sentinels of a group and believes who knows of the newest failover, as routers do; of several, most of them.
func (s *cluster) sentinelView(ctx context.Context, g *router.Group) (best sentinelView, err error) {
	said := make([]sentinelView, len(g.Sentinels))
	errs := make([]error, len(g.Sentinels))
	var asked sync.WaitGroup
	for i, address := range g.Sentinels {
		asked.Go(func() { said[i], errs[i] = s.askSentinel(ctx, address, g.Master) })
	}
	asked.Wait()
	votes := make(map[string]int)
	for _, one := range said {
		votes[one.primary]++
	}
	for i, one := range said {
		newer := one.epoch > best.epoch || one.epoch == best.epoch && votes[one.primary] > votes[best.primary]
		if errs[i] == nil && (best.primary == "" || newer) {
			best = one
		}
	}
	if best.primary == "" {
		return best, fmt.Errorf("no sentinel names the primary: %w", errors.Join(errs...))
	}
	return best, nil
}

func (s *cluster) askSentinel(ctx context.Context, address, master string) (sentinelView, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client := redis.NewSentinelClient(withAddress(s.sentinel, address))
	defer client.Close()
	m, err := client.Master(ctx, master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	epoch, _ := strconv.ParseInt(m["config-epoch"], 10, 64)
	seen := sentinelView{epoch: epoch, primary: net.JoinHostPort(m["ip"], m["port"])}
	replicas, err := client.Replicas(ctx, master).Result()
	if err != nil {
		return sentinelView{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	for _, r := range replicas {
		seen.replicas = append(seen.replicas, net.JoinHostPort(r["ip"], r["port"]))
	}
	return seen, nil
}

// withdraw deletes the topology of an epoch, unless another is published meanwhile, and says what was there before.
func (b *publisher) withdraw(ctx context.Context, epoch uint64) (before string, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cluster.timeout)
	defer cancel()
	client := b.client
	if client == nil {
		node := redis.NewClient(withAddress(b.cluster.node, b.Node))
		defer node.Close()
		client = node
	}
	name := b.cluster.prefix + "topology"
	before = "none"
	err = client.Watch(ctx, func(tx *redis.Tx) error {
		stored, err := tx.Get(ctx, name).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		version, _, _ := strings.Cut(stored, " ")
		there, err := strconv.ParseUint(version, 10, 64)
		if before = epochWord(there); err != nil {
			before, there = "no topology", 0
		}
		if there != epoch {
			return nil
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Del(ctx, name).Err() })
		done = err == nil
		return err
	}, name)
	return before, done, err
}

// published is what a board says.
type published struct {
	Group  string `json:"group"`
	Node   string `json:"node"`
	Epoch  uint64 `json:"epoch"` // 0: nothing is posted, or nobody answers
	Digest string `json:"digest,omitempty"`
	Error  string `json:"error,omitempty"`
	text   string
	err    error
}

// readPublished reads all boards at once.
func readPublished(ctx context.Context, boards []*publisher) []published {
	return askAll(boards, func(b *publisher) published { return b.published(b.Redis.Look, ctx) })
}

// publish leaves a notice and reads what is there then: of an equal epoch a server keeps what it has.
func (b *publisher) publish(ctx context.Context, n backend.Notice) published {
	return b.published(func(ctx context.Context) (backend.Notice, error) {
		if there, err := b.Redis.Post(ctx, n); err != nil {
			return there, err
		}
		return b.Redis.Look(ctx)
	}, ctx)
}

func (b *publisher) published(ask func(context.Context) (backend.Notice, error), ctx context.Context) published {
	p := published{Group: b.Group, Node: b.Node, err: b.err}
	if b.err == nil {
		var there backend.Notice
		there, p.err = ask(ctx)
		p.Epoch, p.Digest, p.text = uint64(there.Version), there.Digest, there.Text
	}
	if p.err != nil {
		p.Error = p.err.Error()
	}
	return p
}

// askAll asks all at once and keeps the order.
func askAll[T, R any](all []T, ask func(T) R) []R {
	answers := make([]R, len(all))
	var asked sync.WaitGroup
	for i, one := range all {
		asked.Go(func() { answers[i] = ask(one) })
	}
	asked.Wait()
	return answers
}

// inForce is the topology that running processes use, as far as the boards of the file's groups tell: that of the file, or a
// newer one. Without any notice there is no such process, or their topology has no epoch; then the file is all there is, and is
// returned without its epoch, so that a router made of it tells nobody.
func (s *cluster) inForce(all []published) (router.Topology, error) {
	file, newest := s.topology, newestPublished(all)
	var errs []error
	for _, p := range all {
		if p.err != nil {
			errs = append(errs, fmt.Errorf("group %s: %w", p.Group, p.err))
		}
	}
	switch {
	case len(errs) == len(all):
		return file, errors.Join(errs...)
	case newest.Epoch == 0:
		file.Epoch, file.Previous, file.Baseline = 0, nil, false
		return file, nil
	case file.Epoch == 0:
		return file, fmt.Errorf("the file has epoch 0, but epoch %d is in force on %s", newest.Epoch, newest.Node)
	case newest.Epoch > file.Epoch:
		return s.trustedTopology(newest)
	case newest.Epoch < file.Epoch:
		return file, fmt.Errorf("the file's epoch %d is not in force: %s has epoch %d (see throttlectl topology push)",
			file.Epoch, newest.Node, newest.Epoch)
	}
	for _, p := range all {
		if p.Epoch == file.Epoch && p.Digest != file.Digest() {
			return file, fmt.Errorf("the file is not the topology of epoch %d that %s has%s", file.Epoch, p.Node, describeChange(p.text, file))
		}
	}
	return file, nil
}
