// Package redisopts hardens the options of Redis clients: a client sends each command once, honours the deadline of its
// context, and sends nothing on connect that a plain server refuses.
package redisopts

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/internal/callguard"
)

// bufferSize is that of a connection's reads and of its writes: a counter's commands and replies are short. The client's
// default is 32 KiB.
const bufferSize = 8 << 10

// Harden changes options. Timeouts that are not set, or negative, become timeout, unless that is 0.
func Harden(o *redis.Options, timeout time.Duration) {
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled, o.DisableIdentity = true, true
	o.PipelinePoolSize = -1 // pipelines would have a pool of their own, on top of PoolSize, with buffers of 128 KiB
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	for _, t := range []*time.Duration{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout} {
		if *t <= 0 && timeout > 0 {
			*t = timeout
		}
	}
	for _, size := range []*int{&o.ReadBufferSize, &o.WriteBufferSize} {
		if *size == 0 {
			*size = bufferSize
		}
	}
	contain(o)
}

// contain makes panics in the application's functions errors: a client loses the place of a connection by a panic while it
// opens one, and its pool has no more than PoolSize of them.
func contain(o *redis.Options) {
	if dial := o.Dialer; dial != nil {
		o.Dialer = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			defer callguard.Recover(&err)
			return dial(ctx, network, addr)
		}
	}
	if connected := o.OnConnect; connected != nil {
		o.OnConnect = func(ctx context.Context, conn *redis.Conn) (err error) {
			defer callguard.Recover(&err)
			return connected(ctx, conn)
		}
	}
	if credentials := o.CredentialsProviderContext; credentials != nil {
		o.CredentialsProviderContext = func(ctx context.Context) (username, password string, err error) {
			defer callguard.Recover(&err)
			return credentials(ctx)
		}
	} else if credentials := o.CredentialsProvider; credentials != nil { // it can't return an error
		o.CredentialsProvider = nil
		o.CredentialsProviderContext = func(context.Context) (username, password string, err error) {
			defer callguard.Recover(&err)
			username, password = credentials()
			return username, password, nil
		}
	}
	if streaming := o.StreamingCredentialsProvider; streaming != nil {
		o.StreamingCredentialsProvider = containedCredentials{streaming}
	}
}

type containedCredentials struct {
	auth.StreamingCredentialsProvider
}

func (c containedCredentials) Subscribe(listener auth.CredentialsListener) (
	credentials auth.Credentials, unsubscribe auth.UnsubscribeFunc, err error,
) {
	defer callguard.Recover(&err)
	return c.StreamingCredentialsProvider.Subscribe(listener)
}

// Cluster returns options of the client of a cluster, from options of its nodes that are hardened already.
func Cluster(addresses []string, o *redis.Options) *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs: slices.Clone(addresses), MaxRedirects: -1, MaxRetries: o.MaxRetries, DialerRetries: o.DialerRetries,
		ContextTimeoutEnabled: true, DisableIdentity: true, MaintNotificationsConfig: o.MaintNotificationsConfig,
		DisableRoutingPolicies: true, // none applies, and to learn them it would ask for the server's commands

		ClientName: o.ClientName, Dialer: o.Dialer, OnConnect: o.OnConnect, Protocol: o.Protocol, TLSConfig: o.TLSConfig,
		Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext:   o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,

		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.PoolTimeout, PoolFIFO: o.PoolFIFO, PoolSize: o.PoolSize, MaxConcurrentDials: o.MaxConcurrentDials,
		PipelinePoolSize: o.PipelinePoolSize, FailingTimeoutSeconds: o.FailingTimeoutSeconds,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxActiveConns: o.MaxActiveConns,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime, ConnMaxLifetimeJitter: o.ConnMaxLifetimeJitter,
		ReadBufferSize: o.ReadBufferSize, WriteBufferSize: o.WriteBufferSize,
	}
}

// Node returns hardened options of one node of a cluster.
func Node(address string, o *redis.ClusterOptions) *redis.Options {
	n := &redis.Options{
		Addr: address,

		ClientName: o.ClientName, Dialer: o.Dialer, OnConnect: o.OnConnect, Protocol: o.Protocol, TLSConfig: o.TLSConfig,
		Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext:   o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,

		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, PoolTimeout: o.PoolTimeout,
		PoolSize: o.PoolSize, ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
		ReadBufferSize: o.ReadBufferSize, WriteBufferSize: o.WriteBufferSize,
	}
	Harden(n, 0)
	return n
}
