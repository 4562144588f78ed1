package redispipe

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/redisopts"
)

// askRedirector makes the calls that a node of a Redis Cluster answers with ASK: the key is not there, its slot moves. Nothing
// was done, and the node that the slot moves to accepts the call after ASKING on the same connection. The cluster client
// would follow with MaxRedirects only, and then also repeat calls that may have run; and it doesn't know a node that has no
// slot yet.
type askRedirector struct {
	options *redis.ClusterOptions
	running sync.WaitGroup

	mu      sync.Mutex // guards what follows
	targets map[string]*askTarget
	closed  bool
}

type askTarget struct {
	client *redis.Client
	until  time.Time // the deadline of the call that came last
}

// ask sends a command to an address, once.
func (a *askRedirector) ask(ctx context.Context, deadline time.Time, address string, args ...any) (string, error) {
	client := a.client(address, deadline)
	if client == nil {
		return "", callguard.Unsent(redis.ErrClosed)
	}
	own, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	pipe := client.Pipeline()
	asking := pipe.Do(own, "asking")
	cmd := pipe.Do(own, args...)
	done := make(chan struct{})
	var panicked error
	a.running.Go(func() { // it reads on after the caller has left, which keeps the connection
		defer cancel()
		defer close(done)
		defer func() {
			if panicked != nil {
				cmd.SetErr(panicked)
			}
		}()
		defer callguard.Recover(&panicked)
		_, _ = pipe.Exec(own)
	})
	select {
	case <-done:
	case <-ctx.Done():
	case <-own.Done():
	}
	select {
	case <-done:
	default:
		return "", errors.Join(ctx.Err(), own.Err())
	}
	if err := asking.Err(); IsReply(err) { // which refuses the other call, too
		return "", err
	}
	reply, err := cmd.Result()
	text, _ := reply.(string) // refunds and resets answer with a number
	return text, err
}

// endpoint is what to dial for the address that a node has answered ASK with. Redis leaves out the brackets of IPv6, and the host
// altogether if it is to be the node's.
func endpoint(address string, node *redis.Client) string {
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return address
	}
	host, port := strings.Trim(address[:colon], "[]"), address[colon+1:]
	if host == "" {
		host, _, _ = net.SplitHostPort(node.Options().Addr)
	}
	return net.JoinHostPort(host, port)
}

// client returns the client of a node, for a call with a deadline; nil after close. Those that have been idle are closed when
// another one comes.
func (a *askRedirector) client(address string, deadline time.Time) *redis.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	target := a.targets[address]
	if target == nil {
		for other, idle := range a.targets {
			if deadline.Sub(idle.until) > ShardIdle {
				_ = idle.client.Close()
				delete(a.targets, other)
			}
		}
		target = &askTarget{client: redis.NewClient(redisopts.Node(address, a.options))}
		if a.targets == nil {
			a.targets = make(map[string]*askTarget)
		}
		a.targets[address] = target
	}
	target.until = deadline
	return target.client
}

// close ends what is under way. No call of ask may follow.
func (a *askRedirector) close() (err error) {
	a.mu.Lock()
	a.closed = true
	for _, target := range a.targets {
		err = errors.Join(err, target.client.Close())
	}
	a.mu.Unlock()
	a.running.Wait()
	return err
}
