//go:build unix

package router_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// The least that a user needs, as docs/security.md has it, in the words of ACL SETUSER. HELLO and AUTH need no right.
var (
	primaryRights  = strings.Fields("~sl:* +time +info +evalsha +eval +get +mget +set")
	replicaRights  = strings.Fields("~sl:* +time +info +get")
	sentinelRights = strings.Fields(
		"&+switch-master +ping +subscribe +sentinel|master +sentinel|get-master-addr-by-name +sentinel|replicas")
	clusterRights = strings.Fields("~sl:* +ping +time +info +evalsha +eval +get +set +cluster|slots +command +readonly +asking")
)

// grant gives the user app exactly these rights at a server, and forgets what the user had before.
func grant(t *testing.T, s *testserver.Server, rights []string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", "app", "reset", "on", ">secret", "resetchannels"}
	for _, r := range rights {
		args = append(args, r)
	}
	if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// app are the options to log in with as that user.
func app() *redis.Options { return &redis.Options{Username: "app", Password: "secret"} }

// TestLeastPrivilege: a user with the documented rights can do all that Sluice does, and with one right less it can't.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, 1)
	servers := []*testserver.Server{c.primaries["a"], c.primaries["b"], c.replicas["a"][0], c.replicas["b"][0]}
	round := 0
	try := func(t *testing.T, onPrimaries, onReplicas []string) error {
		round++
		for i, s := range servers {
			grant(t, s, [...][]string{onPrimaries, onPrimaries, onReplicas, onReplicas}[i])
			if err := s.Client().ScriptFlush(t.Context()).Err(); err != nil { // each round loads the scripts anew
				t.Fatal(err)
			}
		}
		for _, name := range c.names {
			if err := c.primaries[name].Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			c.replicas[name][0].AwaitSync(c.primaries[name])
		}
		return useAll(t, c, fmt.Sprint("round ", round))
	}
	if err := try(t, primaryRights, replicaRights); err != nil {
		t.Fatalf("the documented rights are not enough: %v", err)
	}
	for i, right := range primaryRights {
		t.Run("primary without "+right, func(t *testing.T) {
			if try(t, slices.Delete(slices.Clone(primaryRights), i, i+1), replicaRights) == nil {
				t.Error("nothing fails: it is documented, but not needed")
			}
		})
	}
	for i, right := range replicaRights {
		t.Run("replica without "+right, func(t *testing.T) {
			if try(t, primaryRights, slices.Delete(slices.Clone(replicaRights), i, i+1)) == nil {
				t.Error("nothing fails: it is documented, but not needed")
			}
		})
	}
}

// useAll does all that a router does with servers: heartbeats, takes, alone and together, looks at replicas, refunds, resets,
// and a change of the topology, that it posts and that moves a key. It returns what went wrong.
func useAll(t *testing.T, c *cluster, key string) error {
	var events log
	before := router.Topology{Epoch: 1, Groups: c.topology.Groups[:1]}
	after := router.Topology{Epoch: 2, Groups: c.topology.Groups, Previous: &before}
	r, err := router.Open(before, router.Config{
		Redis: app(), Heartbeat: 20 * time.Millisecond, OnEvent: events.add,
		Backend: redisbackend.Config{Timeout: 5 * time.Second, Pipelines: 1}, // one pipeline: calls that come at once go together
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	told := func() error {
		for _, e := range events.all() {
			if e.Kind == router.Misconfigured {
				return fmt.Errorf("%v", e)
			}
		}
		return nil
	}
	readable := func() bool {
		return !slices.ContainsFunc(r.Nodes(), func(n router.NodeStatus) bool {
			return n.Role == router.RoleReplica && !n.Readable
		})
	}
	await(t, "heartbeats", func() bool { return readable() || told() != nil })

	errs := []error{told(), takeTogether(t, r, key)}
	first, err := r.Take(t.Context(), request(key))
	errs = append(errs, err)
	if err == nil {
		receipt := first.Receipt()
		_, err := r.Charge(t.Context(), request(key), receipt.Mark())
		errs = append(errs, err, r.Refund(t.Context(), request(key), receipt, 1))
	}
	several := backend.Request{Key: key, Policy: &limit.Policy{Name: "two", Limits: []limit.Limit{limit.PerMinute(5), limit.PerHour(9)}}, Cost: 1}
	_, err = r.Take(t.Context(), several)
	errs = append(errs, err)
	looked, err := r.Peek(t.Context(), request(key))
	errs = append(errs, err)
	if err == nil && looked.Source != backend.Replica {
		errs = append(errs, errors.New("the look was not answered by a replica"))
	}

	if err := r.Update(after); err != nil {
		t.Fatal(err)
	}
	await(t, "the notices", func() bool {
		posted := 0
		for _, s := range c.primaries {
			text, _ := s.Client().Get(t.Context(), "sl:topology").Result()
			if strings.HasPrefix(text, "2 ") {
				posted++
			}
		}
		return posted == 2 || told() != nil
	})
	moves := key // one that goes to the new group
	for i := 0; r.Owner(moves) != "b"; i++ {
		moves = fmt.Sprint(key, i)
	}
	moved, err := r.Take(t.Context(), request(moves))
	errs = append(errs, err, r.Reset(t.Context(), request(moves)), told())
	if err == nil && moved.Guarantee != backend.Exact {
		errs = append(errs, moved.Cause)
	}
	return errors.Join(errs...)
}

// takeTogether takes from many keys at once, so that some share a script call.
func takeTogether(t *testing.T, r *router.Router, key string) error {
	var mu sync.Mutex
	var errs []error
	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			_, err := r.Take(t.Context(), request(fmt.Sprint(key, " together ", i)))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	callers.Wait()
	return errors.Join(errs...)
}

// TestLeastPrivilegeOfSentinels is the same for the user that asks sentinels. What is missing is in their ACL LOG, at the latest
// when a subscription was silent for a while.
func TestLeastPrivilegeOfSentinels(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	try := func(t *testing.T, rights []string, enough bool) {
		for _, s := range w.sentinels {
			grant(t, s, rights)
			if err := s.Client().Do(t.Context(), "ACL", "LOG", "RESET").Err(); err != nil {
				t.Fatal(err)
			}
		}
		r, err := router.Open(router.Topology{Groups: []router.Group{w.group("a")}}, router.Config{Sentinel: app()})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if !enough {
			await(t, "a refusal: is the right needed?", func() bool { return refused(t, w.sentinels) != "" })
			return
		}
		await(t, "the primary, and a subscription at each sentinel", func() bool {
			if what := refused(t, w.sentinels); what != "" {
				t.Fatalf("the documented rights are not enough: %s", what)
			}
			return primaryOf(r, "a") == w.primary.Addr && !slices.ContainsFunc(w.sentinels, func(s *testserver.Server) bool {
				list, err := s.Client().Do(t.Context(), "CLIENT", "LIST").Text()
				if err != nil {
					t.Fatal(err)
				}
				return !strings.Contains(list, " sub=1 ") // of others that watch there are psub
			})
		})
	}
	try(t, sentinelRights, true)
	for i, right := range sentinelRights {
		t.Run("without "+right, func(t *testing.T) {
			try(t, slices.Delete(slices.Clone(sentinelRights), i, i+1), false)
		})
	}
}

// refused is what a server has refused to a user lately, by its own account; empty if nothing was.
func refused(t *testing.T, servers []*testserver.Server) string {
	t.Helper()
	for _, s := range servers {
		entries, err := s.Client().Do(t.Context(), "ACL", "LOG").Slice()
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 0 {
			return fmt.Sprint(entries[0])
		}
	}
	return ""
}

// TestLeastPrivilegeOfACluster is the same for a Redis Cluster.
func TestLeastPrivilegeOfACluster(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 2, 1)
	group := router.Group{Name: "a"}
	var servers []*testserver.Server
	for _, s := range shards {
		group.Cluster = append(group.Cluster, s.Primary.Addr)
		servers = append(servers, s.Primary, s.Replicas[0])
	}
	const moves = "on its way" // to the other shard: its node answers ASK
	slot := clusterDo(t, shards[0].Primary, "CLUSTER", "KEYSLOT", "sl:p:on%20its%20way")
	from, to := shards[0].Primary, shards[1].Primary
	if n, _ := strconv.Atoi(slot); n >= 8192 {
		from, to = to, from
	}
	clusterDo(t, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", clusterDo(t, from, "CLUSTER", "MYID"))
	clusterDo(t, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", clusterDo(t, to, "CLUSTER", "MYID"))

	policy := limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(100)}}
	round := 0
	try := func(t *testing.T, rights []string) (err error) {
		for _, s := range servers {
			grant(t, s, rights)
			for _, command := range [][]any{{"SCRIPT", "FLUSH"}, {"ACL", "LOG", "RESET"}} {
				if err := s.Client().Do(t.Context(), command...).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		r, err := router.Open(router.Topology{Epoch: 1, Groups: []router.Group{group}}, router.Config{
			Redis: app(), Backend: redisbackend.Config{Timeout: 5 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		await(t, "a replica that is read", func() bool {
			return refused(t, servers) != "" || slices.ContainsFunc(r.Nodes(), func(n router.NodeStatus) bool { return n.Readable })
		})
		_, err = r.Take(t.Context(), backend.Request{Key: moves, Policy: &policy, Cost: 1})
		for range 20 {
			round++
			req := backend.Request{Key: fmt.Sprint("key ", round), Policy: &policy, Cost: 1}
			_, took := r.Take(t.Context(), req)
			_, looked := r.Peek(t.Context(), req)
			err = errors.Join(err, took, looked, r.Reset(t.Context(), req))
		}
		if d := refused(t, servers); d != "" {
			err = errors.Join(err, errors.New(d))
		}
		return err
	}
	if err := try(t, clusterRights); err != nil {
		t.Fatalf("the documented rights are not enough: %v", err)
	}
	for i, right := range clusterRights {
		t.Run("without "+right, func(t *testing.T) {
			if try(t, slices.Delete(slices.Clone(clusterRights), i, i+1)) == nil {
				t.Error("nothing fails: it is documented, but not needed")
			}
		})
	}
}

func clusterDo(t *testing.T, s *testserver.Server, args ...any) string {
	t.Helper()
	reply, err := s.Client().Do(t.Context(), args...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return fmt.Sprint(reply)
}
