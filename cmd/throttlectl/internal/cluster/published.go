package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/ring"
	"github.com/sluice-go/sluice/router"
)

// TrustedTopology parses what is published, and refuses a topology that the tool must not follow: one that leads to servers
// that the file doesn't name, unless it is signed or the servers are allowed.
func (c *Cluster) TrustedTopology(p Published) (router.Topology, error) {
	t, err := router.ParseTopology([]byte(p.Text))
	switch {
	case err != nil:
	case t.Epoch != p.Epoch:
		err = fmt.Errorf("its text has epoch %d", t.Epoch)
	default:
		err = c.Trust.CheckPublished(c.Topology, t)
	}
	if err != nil {
		return t, fmt.Errorf("the topology of epoch %d on %s: %w (throttlectl topology withdraw takes one away that should not be there)",
			p.Epoch, p.Node, err)
	}
	return t, nil
}

// NewestPublished is the first of the largest epoch; zero if nothing is published.
func NewestPublished(all []Published) (newest Published) {
	for _, p := range all {
		if p.Epoch > newest.Epoch {
			newest = p
		}
	}
	return newest
}

// TopologyHistory is a topology and all before it, the newest first, each without its Previous.
func TopologyHistory(t *router.Topology) (all []router.Topology) {
	for ; t != nil; t = t.Previous {
		one := *t
		one.Previous = nil
		all = append(all, one)
	}
	return all
}

// DescribeChange is what a topology changes against the published one, as the end of an error; empty if nothing.
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
func (p *Publisher) Withdraw(ctx context.Context, epoch uint64) (before string, done bool, err error) {
	before = "none"
	if p.err != nil {
		return before, false, p.err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cluster.Timeout)
	defer cancel()
	client := p.client
	if client == nil {
		node := redis.NewClient(WithAddress(p.cluster.Node, p.Node))
		defer node.Close()
		client = node
	}
	name := p.cluster.Prefix + "topology"
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
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Del(ctx, name).Err() })
		done = err == nil
		return err
	}, name)
	return before, done, err
}

// Published is the topology that a group's primary has.
type Published struct {
	Group, Node string
	Epoch       uint64 // 0: nothing is published, or Err is why that isn't known
	Digest      string
	Text        string
	Err         error
}

// Publish writes a topology as routers do, and reads what is there then: of an equal epoch a server keeps what it has.
func (p *Publisher) Publish(ctx context.Context, t router.Topology) Published {
	return p.published(func(ctx context.Context) (control.Announcement, error) {
		text, err := json.Marshal(t)
		if err != nil {
			return control.Announcement{}, err
		}
		if there, err := p.Redis.Publish(ctx, control.Announcement{Version: int64(t.Epoch), Digest: t.Digest(), Text: string(text)}); err != nil {
			return there, err
		}
		return p.Redis.Published(ctx)
	}, ctx)
}

func (p *Publisher) published(call func(context.Context) (control.Announcement, error), ctx context.Context) Published {
	is := Published{Group: p.Group, Node: p.Node, Err: p.err}
	if p.err == nil {
		var there control.Announcement
		there, is.Err = call(ctx)
		is.Epoch, is.Digest, is.Text = uint64(there.Version), there.Digest, there.Text
	}
	return is
}

// InForce is the topology that running processes use, by what is published: that of the file, or a newer one. Where nothing is
// published no process runs, or their topology has no epoch: then it is the file's without its epoch, so that a router
// opened with it publishes nothing.
func (c *Cluster) InForce(all []Published) (router.Topology, error) {
	file, newest := c.Topology, NewestPublished(all)
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
		return c.TrustedTopology(newest)
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

// EpochWord is an epoch as it is printed.
func EpochWord(epoch uint64) string {
	if epoch == 0 {
		return "none"
	}
	return fmt.Sprint(epoch)
}
