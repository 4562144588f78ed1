//go:build unix && containers

package integration_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"

	"github.com/sluice-go/sluice/internal/testserver"
)

// hostVariable names the host at which containers are found, for testcontainers and here.
const hostVariable = "TESTCONTAINERS_HOST_OVERRIDE"

// engineHost is the host at which this process reaches the ports that the engine publishes. What testcontainers takes it
// for is wrong where this process runs in a container and the engine beside it, so a container is asked once at each
// candidate, and a wrong host fails the whole run in seconds.
var engineHost = sync.OnceValues(func() (host string, err error) {
	ctx := context.Background()
	c, err := testcontainers.Run(ctx, redisImage, testcontainers.WithExposedPorts("6379/tcp"))
	defer func() { _ = testcontainers.TerminateContainer(c) }()
	if err != nil {
		return "", fmt.Errorf("no container of %s from the Docker engine: %w", redisImage, err)
	}
	port, err := c.MappedPort(ctx, "6379/tcp")
	if err != nil {
		return "", err
	}
	hosts := []string{os.Getenv(hostVariable)}
	if hosts[0] == "" {
		hosts = []string{"127.0.0.1"} // the engine runs beside this process
		if guess, err := c.Host(ctx); err == nil && guess != "localhost" {
			hosts = append(hosts, guess) // that of DOCKER_HOST; in a container, a gateway
		}
		hosts = append(hosts, "host.docker.internal") // in a container of Docker Desktop
	}
	host, err = firstAnswering(hosts, port.Port(), 10*time.Second)
	if err != nil {
		err = cmp.Or(ended(c), err)
	}
	return host, err
})

// firstAnswering returns the first of hosts at whose port a Redis server answers, and asks again for the time given.
func firstAnswering(hosts []string, port string, within time.Duration) (string, error) {
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		for _, host := range hosts {
			if testserver.RedisAnswers(net.JoinHostPort(host, port)) {
				return host, nil
			}
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("a container that publishes port %s answers at none of %s: set %s to the host at which "+
				"ports of the Docker engine's containers are reached from here", port, strings.Join(hosts, ", "), hostVariable)
		}
	}
}

// ended returns an error with what the container printed if it doesn't run.
func ended(c testcontainers.Container) error {
	ctx := context.Background()
	if state, err := c.State(ctx); err != nil || state.Running {
		return err
	}
	logs, err := c.Logs(ctx)
	if err != nil {
		return err
	}
	defer logs.Close()
	printed, _ := io.ReadAll(logs)
	return fmt.Errorf("a container ended at once:\n%s", printed)
}

func TestFirstAnswering(t *testing.T) {
	t.Parallel()
	_, port, _ := net.SplitHostPort(testserver.Redis(t).Addr)
	if got, err := firstAnswering([]string{"127.0.0.2", "127.0.0.1"}, port, patience); got != "127.0.0.1" || err != nil {
		t.Errorf("found at %q, %v; want 127.0.0.1", got, err)
	}
	_, err := firstAnswering([]string{"127.0.0.2", "127.0.0.3"}, port, 0)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.2, 127.0.0.3: set TESTCONTAINERS_HOST_OVERRIDE to") {
		t.Errorf("found nowhere: %v, want the hosts and what to set", err)
	}
}
