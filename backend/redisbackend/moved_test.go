//go:build unix

package redisbackend_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
)

// TestRedisClusterMovedInTime: a call that is sent from node to node ends by its timeout.
func TestRedisClusterMovedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Second) // the client looks for the slots in the background
		// Addresses are numbers: the resolver of names must not be set up within the bubble.
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"192.0.2.1:1"}, MaxRedirects: -1, ContextTimeoutEnabled: true, DisableRoutingPolicies: true,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{ID: "it", Addr: "192.0.2.1:1"}}}}, nil
			},
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				go redirect(theirs, "MOVED 1 192.0.2.1:1")
				return ours, nil
			},
		})
		defer client.Close()
		const timeout = 155 * time.Millisecond // the pauses before it add up to 150 ms, and the next one takes 60
		b, err := redisbackend.New(client, redisbackend.Config{Timeout: timeout, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		begin := time.Now()
		_, err = b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		if took := time.Since(begin); took > timeout || took < timeout/2 {
			t.Errorf("a call with a timeout of %s took %s", timeout, took)
		}
		backendtesting.WantError(t, err, backend.Unavailable, false)
	})
}

// TestRedisClusterAsksThere: a key whose slot moves is asked for at the address that the node names, in whichever form.
func TestRedisClusterAsksThere(t *testing.T) {
	for says, want := range map[string]string{
		"192.0.2.2:7001":   "192.0.2.2:7001",
		"node-2:7001":      "node-2:7001",
		"2001:db8::2:7001": "[2001:db8::2]:7001", // as Redis writes it
		":7001":            "192.0.2.1:7001",     // cluster-preferred-endpoint-type unknown-endpoint
	} {
		synctest.Test(t, func(t *testing.T) {
			defer time.Sleep(time.Second) // the client looks for the slots in the background
			var asked atomic.Value
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{"192.0.2.1:1"}, MaxRedirects: -1, ContextTimeoutEnabled: true, DisableRoutingPolicies: true,
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{ID: "it", Addr: "192.0.2.1:1"}}}}, nil
				},
				Dialer: func(_ context.Context, _, addr string) (net.Conn, error) {
					if addr != "192.0.2.1:1" {
						asked.Store(addr)
						return nil, &net.OpError{Op: "dial", Err: errors.New("nobody is there")}
					}
					ours, theirs := net.Pipe()
					go redirect(theirs, "ASK 1 "+says)
					return ours, nil
				},
			})
			defer client.Close()
			b, err := redisbackend.New(client, redisbackend.Config{Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			for op, call := range map[string]func() error{
				"take": func() error { _, err := b.Take(t.Context(), backendtesting.Request(backendtesting.Secret)); return err },
				"load": func() error { _, err := b.Load(t.Context(), backendtesting.Request(backendtesting.Secret)); return err },
			} {
				asked.Store("")
				backendtesting.WantError(t, call(), backend.Unavailable, false)
				if got := asked.Load(); got != want {
					t.Errorf("%s: ASK 1 %s leads to %q, want %s", op, says, got, want)
				}
			}
		})
	}
}

// redirect answers scripts and reads as the node of a cluster that doesn't have the slot, and nothing else.
func redirect(conn net.Conn, answer string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		var words, size int
		if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
			return
		}
		command := make([]string, words)
		for i := range command {
			if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
				return
			}
			word := make([]byte, size+2)
			if _, err := io.ReadFull(in, word); err != nil {
				return
			}
			command[i] = string(word[:size])
		}
		says := "ERR unknown command"
		if strings.HasPrefix(command[0], "eval") || command[0] == "get" {
			says = answer
		}
		if _, err := io.WriteString(conn, "-"+says+"\r\n"); err != nil {
			return
		}
	}
}
