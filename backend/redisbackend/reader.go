package redisbackend

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/internal/storedname"
	"github.com/sluice-go/sluice/internal/tracing"
	"github.com/sluice-go/sluice/limit/state"
)

// reader loads keys, and knows the server's time.
type reader struct {
	cfg     Config
	node    string // the address; of several, separated by commas
	source  redispipe.Reader
	guard   *callguard.Guard
	clock   serverClock
	syncing atomic.Bool // whether the server's clock is being read in the background
}

// use makes the reader read from a source.
func (r *reader) use(source redispipe.Reader, node string) {
	r.source, r.guard, r.node = source, source.Guard(), node
}

// pipeConfig configures the transport of a backend whose errors name a node.
func (r *reader) pipeConfig(node string) redispipe.Config {
	return redispipe.Config{
		Guard: callguard.Config{
			Timeout: r.cfg.Timeout, KeepsConn: true, Closed: backend.ErrClosed,
			Wrap: func(ctx context.Context, op string, err error) error {
				return outcome.Wrap(ctx, op, node, err, classify)
			},
		},
		Pipelines: r.cfg.Pipelines, Queue: r.cfg.Queue, Now: r.nowMicros, ClockKey: r.cfg.Prefix + announcementName,
	}
}

func (r *reader) name(req *backend.Request) string {
	return storedname.Of(r.cfg.Prefix, req.Policy.Name, req.Key)
}

// load reads a key. It also returns the client of the server that has it, if that is known, and the deadline of the call.
func (r *reader) load(ctx context.Context, req *backend.Request) (s backend.Snapshot, by *redis.Client, deadline time.Time, err error) {
	if err := req.Check(ctx); err != nil {
		return s, nil, deadline, err
	}
	deadline = r.guard.Deadline()
	now, err := r.serverTime(ctx, deadline)
	if err != nil {
		return s, nil, deadline, err
	}
	name := r.name(req)
	type value struct {
		text string
		by   *redis.Client
	}
	traced := backend.Call{Op: "load", Command: "GET", Start: time.Now()}
	stored, err := callguard.Do(ctx, r.guard, "load", deadline, func(ctx context.Context) (value, error) {
		text, by, err := r.source.Get(ctx, deadline, name)
		if errors.Is(err, redis.Nil) {
			text, err = "", nil
		}
		return value{text, by}, err
	})
	r.record(req.Trace, traced, err)
	if err != nil {
		return s, nil, deadline, err
	}
	known, err := state.ParseState(stored.text)
	if err != nil {
		return s, nil, deadline, &backend.Error{Op: "load", Node: r.node, Kind: backend.Corrupt, Err: err}
	}
	return backend.Snapshot{State: known, Now: now.micros, Source: backend.Primary}, stored.by, deadline, nil
}

// Ping implements [backend.Pinger]; it also reads the server's clock.
func (r *reader) Ping(ctx context.Context) error {
	if ctx == nil {
		return fielderrors.ErrNilContext
	}
	_, err := r.readClock(ctx, r.guard.Deadline())
	return err
}

// nowMicros is the server's time, or 0 before it is known.
func (r *reader) nowMicros() int64 {
	if r.cfg.Now != nil {
		return r.cfg.Now().UnixMicro()
	}
	now, ok := r.clock.now()
	if !ok {
		return 0
	}
	return now.micros
}

// serverTime is the server's time. Only the first call, and one after a long silence, waits for the server to say
// it; a reading that ages is renewed in the background.
func (r *reader) serverTime(ctx context.Context, deadline time.Time) (serverTime, error) {
	if r.cfg.Now != nil {
		return serverTime{micros: r.cfg.Now().UnixMicro()}, nil
	}
	now, ok := r.clock.now()
	if !ok || now.age > clockTrusted {
		if _, err := r.readClock(ctx, deadline); err != nil {
			return serverTime{}, err
		}
		now, _ = r.clock.now()
		return now, nil
	}
	if now.age > clockFresh && r.syncing.CompareAndSwap(false, true) {
		go func() {
			defer r.syncing.Store(false)
			_, _ = r.readClock(context.Background(), r.guard.Deadline()) // the next call tries again
		}()
	}
	return now, nil
}

// readClock returns how far the server's clock is ahead.
func (r *reader) readClock(ctx context.Context, deadline time.Time) (time.Duration, error) {
	return callguard.Do(ctx, r.guard, "ping", deadline, func(ctx context.Context) (time.Duration, error) {
		read, err := r.source.Time(ctx)
		if err != nil {
			return 0, err
		}
		r.clock.observe(read.Now.UnixMicro(), read.Asked, read.Borrowed)
		return ahead(read.Now, read.Asked, time.Since(read.Asked)), nil
	})
}

// record adds a call to a trace, if there is one.
func (r *reader) record(t *backend.Trace, c backend.Call, err error) {
	if t != nil {
		c.System, c.Node, c.Status = "redis", r.node, redispipe.Status(err)
		tracing.Record(t, c, err)
	}
}
