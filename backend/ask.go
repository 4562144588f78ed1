package backend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/internal/callguard"
)

// askRedirector follow ASK. A node of a Redis Cluster answers so for a key that is not there while its slot moves: nothing was done,
// and the node that the slot moves to takes the call if ASKING comes before it on the same connection. The cluster client
// would follow with MaxRedirects only, under which it also sends what may have run; and it doesn't know a node that has
// no slot yet.
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
		return "", callguard.Unsent(ErrClosed)
	}
	own, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	pipe := client.Pipeline()
	asking := pipe.Do(own, "asking")
	cmd := pipe.Do(own, args...)
	done := make(chan struct{})
	a.running.Go(func() { // which reads on after the caller has left, and so keeps the connection
		defer cancel()
		_, _ = pipe.Exec(own)
		close(done)
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
	if err := asking.Err(); isReply(err) { // the other call was refused for that
		return "", err
	}
	reply, err := cmd.Result()
	text, _ := reply.(string) // refunds and resets answer with a number
	return text, err
}

// client returns the client of a node; nil once they are closed. Of a cluster that moves slots there are few.
func (a *askRedirector) client(address string) *redis.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	client := a.clients[address]
	if client == nil {
		o := a.options
		client = redis.NewClient(&redis.Options{
			Addr: address, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},

			ClientName: o.ClientName, Dialer: o.Dialer, OnConnect: o.OnConnect, Protocol: o.Protocol, TLSConfig: o.TLSConfig,
			Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
			CredentialsProviderContext:   o.CredentialsProviderContext,
			StreamingCredentialsProvider: o.StreamingCredentialsProvider,

			DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, PoolTimeout: o.PoolTimeout,
			PoolSize: o.PoolSize, ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
			ReadBufferSize: o.ReadBufferSize, WriteBufferSize: o.WriteBufferSize,
		})
		if a.clients == nil {
			a.clients = make(map[string]*redis.Client)
		}
		a.clients[address] = client
	}
	return client
}

// close ends what is under way. Nobody may call ask any more.
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
