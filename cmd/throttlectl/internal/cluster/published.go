package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/ring"
	"github.com/sluice-go/sluice/router"
)

// TrustedTopology is the topology that a board has, if the tool may go by it: it leads to no server that the file doesn't know, unless it is
// signed or the server allowed.
func (s *Cluster) TrustedTopology(p Published) (router.Topology, error) {
	t, err := router.ParseTopology([]byte(p.Text))
	switch {
	case err != nil:
	case t.Epoch != p.Epoch:
		err = fmt.Errorf("its text has epoch %d", t.Epoch)
	default:
		err = s.Trust.CheckPublished(s.Topology, t)
	}
	if err != nil {
		return t, fmt.Errorf("the topology of epoch %d on %s: %w (throttlectl topology withdraw takes one away that should not be there)",
			p.Epoch, p.Node, err)
	}
	return t, nil
}

// NewestPublished is the first notice of the largest epoch.
func NewestPublished(all []Published) (newest Published) {
	for _, p := range all {
		if p.Epoch > newest.Epoch {
			newest = p
		}
	}
	return newest
}

// TopologyHistory is a topology and all before it, the newest first, each without what came before it.
func TopologyHistory(t *router.Topology) (all []router.Topology) {
	for ; t != nil; t = t.Previous {
		one := *t
		one.Previous = nil
		all = append(all, one)
	}
	return all
}

// DescribeChange is what a topology changes against one that is published.
func DescribeChange(published string, t router.Topology) string {
	there, err := router.ParseTopology([]byte(published))
	if err != nil {
		return ""
	}
	if words := router.Changes(there, t); words != "" {
		return ": in the file " + words
	}
	return ""
}

// Withdraw deletes the topology of an epoch, unless another is published meanwhile, and says what was there before.
func (b *Publisher) Withdraw(ctx context.Context, epoch uint64) (before string, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cluster.Timeout)
	defer cancel()
	client := b.client
	if client == nil {
		node := redis.NewClient(WithAddress(b.cluster.Node, b.Node))
		defer node.Close()
		client = node
	}
	name := b.cluster.Prefix + "topology"
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
		if before = EpochWord(there); err != nil {
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

// Published is what a board says.
type Published struct {
	Group  string `json:"group"`
	Node   string `json:"node"`
	Epoch  uint64 `json:"epoch"` // 0: nothing is posted, or nobody answers
	Digest string `json:"digest,omitempty"`
	Error  string `json:"error,omitempty"`
	Text   string
	Err    error
}

// ReadPublished reads all boards at once.
func ReadPublished(ctx context.Context, boards []*Publisher) []Published {
	return AskAll(boards, func(b *Publisher) Published { return b.published(b.Redis.Look, ctx) })
}

// Publish writes a topology as routers do, and reads what is there then: of an equal epoch a server keeps what it has.
func (b *Publisher) Publish(ctx context.Context, t router.Topology) Published {
	return b.published(func(ctx context.Context) (backend.Notice, error) {
		text, err := json.Marshal(t)
		if err != nil {
			return backend.Notice{}, err
		}
		if there, err := b.Redis.Post(ctx, backend.Notice{Version: int64(t.Epoch), Digest: t.Digest(), Text: string(text)}); err != nil {
			return there, err
		}
		return b.Redis.Look(ctx)
	}, ctx)
}

func (b *Publisher) published(ask func(context.Context) (backend.Notice, error), ctx context.Context) Published {
	p := Published{Group: b.Group, Node: b.Node, Err: b.Err}
	if b.Err == nil {
		var there backend.Notice
		there, p.Err = ask(ctx)
		p.Epoch, p.Digest, p.Text = uint64(there.Version), there.Digest, there.Text
	}
	if p.Err != nil {
		p.Error = p.Err.Error()
	}
	return p
}

// InForce is the topology that running processes use, as far as the boards of the file's groups tell: that of the file, or a
// newer one. Without any notice there is no such process, or their topology has no epoch; then the file is all there is, and is
// returned without its epoch, so that a router made of it tells nobody.
func (s *Cluster) InForce(all []Published) (router.Topology, error) {
	file, newest := s.Topology, NewestPublished(all)
	var errs []error
	for _, p := range all {
		if p.Err != nil {
			errs = append(errs, fmt.Errorf("group %s: %w", p.Group, p.Err))
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
		return s.TrustedTopology(newest)
	case newest.Epoch < file.Epoch:
		return file, fmt.Errorf("the file's epoch %d is not in force: %s has epoch %d (see throttlectl topology push)",
			file.Epoch, newest.Node, newest.Epoch)
	}
	for _, p := range all {
		if p.Epoch == file.Epoch && p.Digest != file.Digest() {
			return file, fmt.Errorf("the file is not the topology of epoch %d that %s has%s", file.Epoch, p.Node, DescribeChange(p.Text, file))
		}
	}
	return file, nil
}

// TopologyRing is the ring that routers make of a topology.
func TopologyRing(t router.Topology) (*ring.Ring, error) {
	members := make([]ring.Member, len(t.Groups))
	for i, g := range t.Groups {
		members[i] = ring.Member{Name: g.Name, Weight: g.Weight}
	}
	return ring.New(members, ring.Config{Seed: t.Seed})
}

func EpochWord(epoch uint64) string {
	if epoch == 0 {
		return "none"
	}
	return fmt.Sprint(epoch)
}
