//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

func TestOpenRedisRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		opts *redis.Options
		cfg  redisbackend.Config
		want []string
	}{
		"no options": {nil, redisbackend.Config{}, []string{"options"}},
		"prefix":     {&redis.Options{}, redisbackend.Config{Prefix: "with space"}, []string{"Prefix"}},
		"braces":     {&redis.Options{}, redisbackend.Config{Prefix: "{tag}"}, []string{"Prefix"}},
		"long":       {&redis.Options{}, redisbackend.Config{Prefix: "12345678901234567"}, []string{"Prefix"}},
		"all":        {&redis.Options{}, redisbackend.Config{Prefix: "%", Timeout: -1}, []string{"Prefix", "Timeout"}},
	} {
		b, err := redisbackend.Open(c.opts, c.cfg)
		checkRefused(t, name, b, err, c.want)
	}
}

func checkRefused(t *testing.T, name string, b *redisbackend.Redis, err error, want []string) {
	t.Helper()
	var typed *limit.Error
	if err == nil || b != nil || !errors.As(err, &typed) {
		t.Errorf("%s: got %v, %v; want a *limit.Error", name, b, err)
		return
	}
	for _, field := range want {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %q doesn't name %s", name, err, field)
		}
	}
}

func TestNewRedisRefuses(t *testing.T) {
	closing := func(c redis.UniversalClient) redis.UniversalClient {
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	const addr = "127.0.0.1:1"
	for name, c := range map[string]struct {
		client redis.UniversalClient
		cfg    redisbackend.Config
		want   []string
	}{
		"defaults":         {closing(redis.NewClient(&redis.Options{Addr: addr})), redisbackend.Config{}, []string{"MaxRetries", "ContextTimeoutEnabled"}},
		"retries":          {closing(redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 1, ContextTimeoutEnabled: true})), redisbackend.Config{}, []string{"MaxRetries"}},
		"deadlines":        {closing(redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})), redisbackend.Config{}, []string{"ContextTimeoutEnabled"}},
		"everything":       {closing(redis.NewClient(&redis.Options{Addr: addr})), redisbackend.Config{Prefix: "{}", Timeout: -1}, []string{"MaxRetries", "ContextTimeoutEnabled", "Prefix", "Timeout"}},
		"cluster":          {closing(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})), redisbackend.Config{}, []string{"MaxRedirects", "ContextTimeoutEnabled"}},
		"cluster, retries": {closing(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, MaxRedirects: -1, MaxRetries: 2, ContextTimeoutEnabled: true})), redisbackend.Config{}, []string{"MaxRetries"}},
		"ring":             {closing(redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, MaxRetries: -1})), redisbackend.Config{}, []string{"Ring"}},
		"wrapped":          {struct{ redis.UniversalClient }{closing(redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 3, ContextTimeoutEnabled: true}))}, redisbackend.Config{}, []string{"UniversalClient", "*redis.ClusterClient"}},
		"wrapped cluster":  {struct{ *redis.ClusterClient }{redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})}, redisbackend.Config{}, []string{"ClusterClient"}},
		"none, of cluster": {(*redis.ClusterClient)(nil), redisbackend.Config{}, []string{"nil"}},
		"none":             {nil, redisbackend.Config{}, []string{"nil"}},
		"none, typed":      {(*redis.Client)(nil), redisbackend.Config{}, []string{"nil"}},
	} {
		b, err := redisbackend.New(c.client, c.cfg)
		checkRefused(t, name, b, err, c.want)
	}
	for name, c := range map[string]redis.UniversalClient{
		"client":   closing(redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true})),
		"cluster":  closing(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, MaxRedirects: -1, ContextTimeoutEnabled: true})),
		"failover": closing(redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{addr}, MaxRetries: -1, ContextTimeoutEnabled: true})),
	} {
		if _, err := redisbackend.New(c, redisbackend.Config{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRedisReplicas: a client that only reads may read from replicas, and may repeat reads.
func TestRedisReplicas(t *testing.T) {
	t.Parallel()
	nodes, _, b := openCluster(t)
	for i := range 5 {
		backendtesting.MustTake(t, b, backendtesting.Request(fmt.Sprint(i)))
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr}, ReadOnly: true, MaxRedirects: 3, ContextTimeoutEnabled: true,
	})
	defer client.Close()
	if _, err := redisbackend.New(client, redisbackend.Config{}); err == nil {
		t.Error("a client that reads replicas and sends again may take")
	}
	reader, err := redisbackend.OpenReplicas([]string{nodes[0].Addr}, nil, redisbackend.Config{Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for i := range 5 {
		req := backendtesting.Request(fmt.Sprint(i))
		there, err := reader.Load(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if r := there.Peek(&req); r.Binding().Remaining != 1_000_000-1 || r.Guarantee != backend.Bounded {
			t.Errorf("key %d: %d left, %s", i, r.Binding().Remaining, r.Guarantee)
		}
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	if _, err := reader.Load(t.Context(), backendtesting.Request("0")); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	_, err = redisbackend.OpenReplicas(nil, nil, redisbackend.Config{Prefix: "{}", Reload: -1})
	checkRefused(t, "config", nil, err, []string{"Prefix", "Reload"})
}

// TestNewRedisLeavesTheClient: what the caller made the caller closes.
func TestNewRedisLeavesTheClient(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer client.Close()
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the caller's client after Close: %v", err)
	}
	if _, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Take after Close: %v", err)
	}
}
