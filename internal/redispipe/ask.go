package redispipe

import (
	"context"
	"errors"
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
	clients map[string]*redis.Client
	closed  bool
}

// ask sends a command to an address, once.
func (a *askRedirector) ask(ctx context.Context, deadline time.Time, address string, args ...any) (string, error) {
	client := a.client(address)
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

// client returns the client of a node; nil after close. Few nodes receive slots at a time.
func (a *askRedirector) client(address string) *redis.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	client := a.clients[address]
	if client == nil {
		client = redis.NewClient(redisopts.Node(address, a.options))
		if a.clients == nil {
			a.clients = make(map[string]*redis.Client)
		}
		a.clients[address] = client
	}
	return client
}

// close ends what is under way. No call of ask may follow.
func (a *askRedirector) close() (err error) {
	a.mu.Lock()
	a.closed = true
	for _, client := range a.clients {
		err = errors.Join(err, client.Close())
	}
	a.mu.Unlock()
	a.running.Wait()
	return err
}
