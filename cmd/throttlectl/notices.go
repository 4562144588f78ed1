package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// Running processes leave the topology that is in force as a notice on the primary of every group (package router tells
// them to). This is how the tool finds out what is in force, and how it brings something newer into force.

// board is where a group's notice is.
type board struct {
	Group string
	Node  string // the address of the primary; of a Redis Cluster those that the topology names
	*redisbackend.Redis
	client redis.UniversalClient // of a Redis Cluster, which the backend doesn't close
	err    error                 // why it can't be found
}

func (b *board) close() {
	if b.Redis != nil {
		_ = b.Redis.Close()
	}
	if b.client != nil {
		_ = b.client.Close()
	}
}

// boards finds the primaries of groups. Sentinels are asked who it is.
func (s *site) boards(ctx context.Context, groups []router.Group) ([]*board, func()) {
	all := make([]*board, len(groups))
	var asked sync.WaitGroup
	for i := range groups {
		asked.Go(func() { all[i] = s.board(ctx, &groups[i]) })
	}
	asked.Wait()
	return all, func() {
		for _, b := range all {
			b.close()
		}
	}
}

func (s *site) board(ctx context.Context, g *router.Group) *board {
	b := &board{Group: g.Name, Node: g.Primary}
	cfg := redisbackend.Config{Prefix: s.prefix, Timeout: s.timeout}
	switch {
	case len(g.Cluster) > 0:
		client := s.cluster(g)
		b.Node, b.client = strings.Join(g.Cluster, ","), client
		b.Redis, b.err = redisbackend.New(client, cfg)
		return b
	case len(g.Sentinels) > 0:
		var seen sighting
		if seen, b.err = s.sight(ctx, g); b.err != nil {
			b.Node = "sentinels"
			return b
		}
		b.Node = seen.primary
	}
	b.Redis, b.err = redisbackend.Open(at(s.node, b.Node), cfg)
	return b
}

func (s *site) cluster(g *router.Group) *redis.ClusterClient {
	n := at(s.node, "")
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: g.Cluster, Username: n.Username, Password: n.Password, TLSConfig: n.TLSConfig,
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1, DialTimeout: s.timeout, ContextTimeoutEnabled: true,
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// sighting is what sentinels say of a group.
type sighting struct {
	epoch    int64
	primary  string
	replicas []string
}

// sight asks all sentinels of a group and believes who knows of the newest failover, as routers do; of several, most of them.
func (s *site) sight(ctx context.Context, g *router.Group) (best sighting, err error) {
	said := make([]sighting, len(g.Sentinels))
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

func (s *site) askSentinel(ctx context.Context, address, master string) (sighting, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client := redis.NewSentinelClient(at(s.sentinel, address))
	defer client.Close()
	m, err := client.Master(ctx, master).Result()
	if err != nil {
		return sighting{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	epoch, _ := strconv.ParseInt(m["config-epoch"], 10, 64)
	seen := sighting{epoch: epoch, primary: net.JoinHostPort(m["ip"], m["port"])}
	replicas, err := client.Replicas(ctx, master).Result()
	if err != nil {
		return sighting{}, fmt.Errorf("sentinel %s: %w", address, err)
	}
	for _, r := range replicas {
		seen.replicas = append(seen.replicas, net.JoinHostPort(r["ip"], r["port"]))
	}
	return seen, nil
}

// posted is what a board says.
type posted struct {
	Group  string `json:"group"`
	Node   string `json:"node"`
	Epoch  uint64 `json:"epoch"` // 0: nothing is posted, or nobody answers
	Digest string `json:"digest,omitempty"`
	Error  string `json:"error,omitempty"`
	text   string
	err    error
}

// readBoards reads all boards at once.
func readBoards(ctx context.Context, boards []*board) []posted {
	return each(boards, func(b *board) posted { return b.say(b.Redis.Published, ctx) })
}

// post leaves a notice and reads what is there then: of an equal epoch a server keeps what it has.
func (b *board) post(ctx context.Context, n backend.Announcement) posted {
	return b.say(func(ctx context.Context) (backend.Announcement, error) {
		if there, err := b.Redis.Publish(ctx, n); err != nil {
			return there, err
		}
		return b.Redis.Published(ctx)
	}, ctx)
}

func (b *board) say(ask func(context.Context) (backend.Announcement, error), ctx context.Context) posted {
	p := posted{Group: b.Group, Node: b.Node, err: b.err}
	if b.err == nil {
		var there backend.Announcement
		there, p.err = ask(ctx)
		p.Epoch, p.Digest, p.text = uint64(there.Version), there.Digest, there.Text
	}
	if p.err != nil {
		p.Error = p.err.Error()
	}
	return p
}

// each asks all at once and keeps the order.
func each[T, R any](all []T, ask func(T) R) []R {
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
func (s *site) inForce(all []posted) (router.Topology, error) {
	file, newest := s.topology, newestOf(all)
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
		return s.posted(newest)
	case newest.Epoch < file.Epoch:
		return file, fmt.Errorf("the file's epoch %d is not in force: %s has epoch %d (see throttlectl topology push)",
			file.Epoch, newest.Node, newest.Epoch)
	}
	for _, p := range all {
		if p.Epoch == file.Epoch && p.Digest != file.Digest() {
			return file, fmt.Errorf("the file is not the topology of epoch %d that %s has%s", file.Epoch, p.Node, inWords(p.text, file))
		}
	}
	return file, nil
}
