//go:build unix && containers

package integration_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	dockernet "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/network"
	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/internal/testserver"
)

const (
	form           = "containers"
	redisImage     = "redis:7.2"
	memcachedImage = "memcached:1.6"
)

// engineLeaks are goroutines that outlive the tests in this form: idle connections to the Docker engine.
var engineLeaks = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	goleak.IgnoreAnyFunction("github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1"),
}

// serverVersion is what the servers are.
func serverVersion() string { return redisImage }

// networks are the networks of the tests that run now: the servers of one test reach each other by name.
var networks sync.Map // *testing.T to *testcontainers.DockerNetwork

var containers atomic.Int64 // started so far, to name them

func init() { tclog.SetDefault(tclog.NewNoopLogger()) } // it tells of every container

func networkOf(t *testing.T) *testcontainers.DockerNetwork {
	t.Helper()
	if known, ok := networks.Load(t); ok {
		return known.(*testcontainers.DockerNetwork)
	}
	made, err := network.New(context.Background())
	if err != nil {
		t.Fatalf("no network from the Docker engine: %v", err)
	}
	networks.Store(t, made)
	t.Cleanup(func() {
		networks.Delete(t)
		testcontainers.CleanupNetwork(t, made)
	})
	return made
}

// startRedis starts an empty Redis server that stores nothing on disk. args are as on its command line.
func startRedis(t *testing.T, args ...string) *server {
	t.Helper()
	all := append([]string{
		"redis-server", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
		"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	}, args...)
	c, name, addr := start(t, redisImage, "6379/tcp", all, testserver.RedisAnswers)
	s := &server{addr: addr, peerHost: name, peerPt: "6379", client: plainClient(t, addr)}
	engine, err := testcontainers.NewDockerClientWithOpts(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Errorf("container of %s: %v", addr, err)
		}
	}
	ctx, id := context.Background(), c.GetContainerID()
	s.kill = func() {
		_, err := engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"})
		must(err)
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
			if state, err := c.State(ctx); err != nil || !state.Running {
				return
			}
		}
		t.Errorf("container of %s runs on", addr)
	}
	s.pause = func() { _, err := engine.ContainerPause(ctx, id, client.ContainerPauseOptions{}); must(err) }
	s.resume = func() { _, err := engine.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{}); must(err) }
	s.restart = func() {
		if state, err := c.State(ctx); err == nil && state.Running {
			s.kill()
		}
		_, err := engine.ContainerStart(ctx, id, client.ContainerStartOptions{})
		must(err)
		await(t, "the restarted server answers", func() bool { return testserver.RedisAnswers(addr) })
	}
	return s
}

// startMemcached starts a Memcached server and returns its address.
func startMemcached(t *testing.T) string {
	t.Helper()
	_, _, addr := start(t, memcachedImage, "11211/tcp", []string{"memcached", "-m", "64"}, testserver.MemcachedAnswers)
	return addr
}

// start runs a container whose port is published on a port of its host that it keeps when it is restarted, and waits
// until its server answers. It returns the container, its name for other containers of the test, and its address for the
// test.
func start(t *testing.T, image, port string, command []string, answers func(addr string) bool) (
	c testcontainers.Container, name, addr string,
) {
	t.Helper()
	host, err := engineHost()
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("server%d", containers.Add(1))
	published := freePort(t)
	c, err = testcontainers.Run(context.Background(), image,
		testcontainers.WithCmd(command...),
		network.WithNetwork([]string{name}, networkOf(t)),
		testcontainers.WithExposedPorts(port),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.PortBindings = dockernet.PortMap{dockernet.MustParsePort(port): []dockernet.PortBinding{
				{HostPort: published}, // of every address: where this process runs in a container, localhost is another host
			}}
		}),
	)
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatalf("no container of %s from the Docker engine: %v", image, err)
	}
	addr = net.JoinHostPort(host, published)
	await(t, "the server in a container answers", func() bool {
		if answers(addr) {
			return true
		}
		if err := ended(c); err != nil {
			t.Fatal(err)
		}
		return false
	})
	return c, name, addr
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
