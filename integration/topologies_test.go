//go:build unix

package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// eventLog keeps what a router tells.
type eventLog struct {
	mu     sync.Mutex // guards events
	events []router.Event
}

func (l *eventLog) add(e router.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *eventLog) any(ok func(router.Event) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.events, ok)
}

func (l *eventLog) has(kind router.EventKind, text string) bool {
	return l.any(func(e router.Event) bool { return e.Kind == kind && strings.Contains(e.String(), text) })
}

func (l *eventLog) is(target error) bool {
	return l.any(func(e router.Event) bool { return errors.Is(e.Err, target) })
}

// openTopology opens a process that goes by a topology.
func openTopology(t *testing.T, topology router.Topology, cfg router.Config) *router.Router {
	t.Helper()
	cfg.Backend = patient
	r, err := router.Open(topology, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// admitted takes n times and returns how much was admitted.
func admitted(t *testing.T, r *router.Router, key string, l limit.Limit, n int) (sum int64) {
	t.Helper()
	policy := one(l)
	for range n {
		result, err := r.Take(t.Context(), backend.Request{Key: key, Policy: &policy, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		if result.Allowed {
			sum++
		}
	}
	return sum
}

// under is a topology of groups under an epoch, with those before it.
func under(epoch uint64, groups []router.Group, previous ...router.Topology) router.Topology {
	t := router.Topology{Epoch: epoch, Groups: groups}
	if len(previous) > 0 {
		p := under(previous[0].Epoch, previous[0].Groups, previous[1:]...)
		t.Previous = &p
	}
	return t
}

// TestTopologyHistory changes the topology twice, and starts a process from a file that names only one of the two before it.
func TestTopologyHistory(t *testing.T) {
	t.Parallel()
	l := limit.PerHour(100)
	groups, _ := groupsOf(startRedis(t).addr, startRedis(t).addr, startRedis(t).addr)
	one, two, three := under(1, groups[:1]), under(2, groups[1:2]), under(3, groups[2:])
	r := openTopology(t, one, router.Config{})
	sum := admitted(t, r, "alice", l, 60)
	for _, next := range []router.Topology{two, three} {
		if err := r.Update(next); err != nil {
			t.Fatal(err)
		}
	}
	short, err := router.Open(under(3, groups[2:], two), router.Config{Backend: patient})
	if err == nil {
		sum += admitted(t, short, "alice", l, 150)
		_ = short.Close()
		t.Error("a file that names one of two topologies before it is taken")
	} else if !strings.Contains(err.Error(), "must be the topology before epoch 2") {
		t.Error(err)
	}
	whole := openTopology(t, under(3, groups[2:], two, one), router.Config{})
	sum += admitted(t, whole, "alice", l, 150)
	sum += admitted(t, r, "alice", l, 10)
	report(t, "topology-history", result{sluice: figures{over: max(0, sum-l.Max), note: fmt.Sprintf("%d admitted in all", sum)}})
}

// TestTopologyEdited edits the file of a process that runs, in the ways that people do.
func TestTopologyEdited(t *testing.T) {
	t.Parallel()
	l := limit.PerHour(100)
	a, b, c := startRedis(t), startRedis(t), startRedis(t)
	groups, _ := groupsOf(a.addr, b.addr)
	var events eventLog
	r := openTopology(t, under(1, groups), router.Config{OnEvent: events.add})
	stays, goes := ownedBy(r, "a", 0), ownedBy(r, "b", 0)
	sum := [2]int64{admitted(t, r, stays, l, 60), admitted(t, r, goes, l, 60)}
	path := filepath.Join(t.TempDir(), "topology.json")
	write := func(topology router.Topology) {
		t.Helper()
		text, err := json.Marshal(topology)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(under(1, groups))
	if err := r.WatchFile(path); err != nil {
		t.Fatal(err)
	}

	c.follow(t, b) // the servers of b move: a replica is promoted, and the file has its address
	awaitSync(t, c, b)
	c.promote(t)
	moved := slices.Clone(groups)
	moved[1].Primary = c.addr
	write(under(1, moved))
	await(t, "the new address", func() bool {
		return slices.ContainsFunc(r.Nodes(), func(n router.NodeStatus) bool { return n.Node == c.addr })
	})
	sum[0], sum[1] = sum[0]+admitted(t, r, stays, l, 20), sum[1]+admitted(t, r, goes, l, 20)

	more := append(slices.Clone(moved), router.Group{Name: "c", Primary: b.addr})
	write(under(1, more))
	await(t, "an epoch forgotten is refused", func() bool {
		return events.has(router.TopologyRejected, `must be 2, with epoch 1 as its "previous"`) && events.has(router.TopologyRejected, `group "c" is new`)
	})
	two := under(2, moved, under(1, groups))
	write(two)
	await(t, "the next epoch", func() bool { return events.has(router.TopologyChanged, "1 to 2") })
	write(under(1, moved))
	await(t, "an epoch that goes back is refused", func() bool {
		return events.has(router.TopologyRejected, `must be above 2, which is in force: to go back, publish it as epoch 3`)
	})
	sum[0], sum[1] = sum[0]+admitted(t, r, stays, l, 50), sum[1]+admitted(t, r, goes, l, 50)
	if sum[0] < l.Max || sum[1] < l.Max {
		t.Errorf("%d are admitted: calls don't go on", sum)
	}
	report(t, "topology-edited", result{sluice: figures{over: max(0, sum[0]-l.Max, sum[1]-l.Max), note: "both keys exhausted exactly"}})
}

// TestTopologyForeign publishes a topology with the rights of an application, and takes it back.
func TestTopologyForeign(t *testing.T) {
	t.Parallel()
	l := limit.PerHour(100)
	a, b := startRedis(t), startRedis(t)
	foreign, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	var heard atomic.Int64
	go func() {
		for {
			conn, err := foreign.Accept()
			if err != nil {
				return
			}
			heard.Add(1)
			_ = conn.Close()
		}
	}()
	groups, _ := groupsOf(a.addr, b.addr)
	client := a.client
	for _, s := range []*server{a, b} {
		args := []any{"ACL", "SETUSER", "app", "reset", "on", ">secret", "resetchannels"}
		for _, right := range strings.Fields("~sl:* +time +info +evalsha +eval +get +mget +set") {
			args = append(args, right)
		}
		if err := s.client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	login := &redis.Options{Username: "app", Password: "secret"}
	var events eventLog
	first := under(1, groups[:1])
	r := openTopology(t, first, router.Config{Redis: login, OnEvent: events.add})
	sum := admitted(t, r, "alice", l, 30)

	attacker := redis.NewClient(&redis.Options{Addr: a.addr, Username: "app", Password: "secret"})
	defer attacker.Close()
	for _, epoch := range []uint64{2, uint64(limit.MaxCount)} {
		bad := router.Topology{Epoch: epoch, Baseline: true, Groups: []router.Group{{Name: "x", Primary: foreign.Addr().String()}}}
		text, err := json.Marshal(bad)
		if err == nil {
			err = attacker.Set(t.Context(), "sl:topology", fmt.Sprintf("%d %s\n%s", epoch, bad.Digest(), text), 0).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		fresh := openTopology(t, first, router.Config{Redis: login, OnEvent: events.add})
		await(t, "it is refused", func() bool {
			return events.is(router.ErrTopologyUntrusted) && (epoch == 2 || events.has(router.TopologyRejected, "must be at most 1000001"))
		})
		sum += admitted(t, fresh, "alice", l, 20)
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("%d connections to the foreign server", n)
	}
	if err := client.Del(t.Context(), "sl:topology").Err(); err != nil { // throttlectl topology withdraw
		t.Fatal(err)
	}
	two := under(2, groups, first)
	if err := r.Update(two); err != nil {
		t.Fatal(err)
	}
	await(t, "the next epoch is published", func() bool {
		text, _ := client.Get(t.Context(), "sl:topology").Result()
		return strings.HasPrefix(text, "2 ")
	})
	sum += admitted(t, r, "alice", l, 100)
	report(t, "topology-foreign", result{sluice: figures{
		over: max(0, sum-l.Max), note: fmt.Sprintf("%d connections to the foreign server; %d admitted in all", heard.Load(), sum),
	}})
}
