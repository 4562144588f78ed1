package featureflag

import (
	"context"
	_ "embed" // set.lua
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed set.lua
var setSource string

var setScript = redis.NewScript(setSource)

// Redis is a hash of any number of flags. A field is a flag's name, and its value is an object as in a [File]:
//
//	{"percent":12.5,"version":179012345678,"killed":false}
//
// [Set], [Kill] and [Revive] change a flag in one atomic step, raise its version, and publish its name on the channel
// that is named like the key. Every [Flag] subscribes to it and sees a change at once; where the subscription is broken
// or rejected, at the next [Config.Refresh].
//
// The client stays the caller's. It must be made with ContextTimeoutEnabled: true, or a load could outlast its timeout;
// and it can't be a redis.Ring, which moves the keys of a dead node to another. An ACL needs ~KEY &KEY +ping,
// and +hget +subscribe to read, +hget +hset +time +publish +evalsha +eval to write.
func Redis(client redis.UniversalClient, key string) Source {
	return &redisHash{client: client, key: key, round: subscriptionRound}
}

type redisHash struct {
	client redis.UniversalClient
	key    string
	round  time.Duration
}

var _ Watcher = (*redisHash)(nil)

func (s *redisHash) validate() error {
	var errs []error
	var none, unbounded bool
	switch c := s.client.(type) {
	case nil:
		none = true
	case *redis.Ring:
		errs = append(errs, invalid("Source: client", "Ring", "must not be a Ring: it moves keys of a dead node to another"))
	case *redis.Client:
		none = c == nil
		unbounded = !none && !c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		none = c == nil
		unbounded = !none && !c.Options().ContextTimeoutEnabled
	}
	if none {
		errs = append(errs, invalid("Source: client", "nil", "must not be nil"))
	}
	if unbounded {
		errs = append(errs, invalid("Source: client: ContextTimeoutEnabled", false, "must be true: without it a load outlives its context"))
	}
	if s.key == "" {
		errs = append(errs, invalid("Source: key", `""`, "must not be empty"))
	}
	return errors.Join(errs...)
}

func (s *redisHash) Load(ctx context.Context, name string) (Value, error) {
	text, err := s.client.HGet(ctx, s.key, name).Result()
	return s.value(ctx, name, text, err)
}

func (s *redisHash) set(ctx context.Context, name string, c change) (Value, error) {
	percent, killed := "", ""
	if c.percent != nil {
		percent = strconv.FormatFloat(*c.percent, 'g', -1, 64)
	}
	if c.killed != nil {
		killed = "0"
		if *c.killed {
			killed = "1"
		}
	}
	// A client that retries may run this twice. That raises the version twice, and nothing else.
	text, err := setScript.Run(ctx, s.client, []string{s.key}, name, percent, killed, uint64(maxGeneration)).Text()
	return s.value(ctx, name, text, err)
}

// value reads a reply.
func (s *redisHash) value(ctx context.Context, name, text string, err error) (Value, error) {
	var v Value
	switch {
	case err == nil:
		v, err = parseValue(name, []byte(text))
	case errors.Is(err, redis.Nil):
		err = ErrNotFound
	case overdue(ctx):
		err = context.DeadlineExceeded // and not "i/o timeout"
	}
	if err != nil {
		return Value{}, fmt.Errorf("redis key %q: %w", s.key, err)
	}
	return v, nil
}

// overdue reads the clock, because a connection's deadline may pass before the context's timer fires.
func overdue(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// A subscription is read in rounds, because no context ends a read that is under way, and so that one whose other end
// has vanished is noticed: after pingAfter silent rounds it is pinged, and given up after as many
// again.
const (
	subscriptionRound = time.Second
	pingAfter         = 5
	ping              = "still there?"
)

var errSilent = errors.New("the subscription doesn't answer")

// Watch calls changed when the subscription stands, for what was missed before, and for every message.
func (s *redisHash) Watch(ctx context.Context, _ string, changed func()) error {
	sub := s.client.Subscribe(ctx) // to nothing yet: no I/O
	closed := make(chan struct{})
	cancelled := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = sub.Close() // ends a read under way
	})
	defer func() {
		if cancelled() {
			_ = sub.Close()
		} else {
			<-closed
		}
	}()
	round, cancel := context.WithTimeout(ctx, s.round)
	err := sub.Subscribe(round, s.key)
	cancel()
	for silent := 0; err == nil; {
		var msg any
		if msg, err = s.receive(ctx, sub); err == nil {
			silent = 0
			switch msg := msg.(type) {
			case *redis.Subscription, *redis.Message:
				changed()
			case *redis.Pong:
				if msg.Payload != ping { // what is left of a message that was cut in two by the end of a round
					err = fmt.Errorf("unexpected message %s", quote(msg.Payload))
				}
			}
			continue
		}
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			break
		}
		silent++
		switch err = nil; silent {
		case pingAfter:
			err = sub.Ping(ctx, ping)
		case 2 * pingAfter:
			err = errSilent
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("redis key %q: %w", s.key, err)
}

// receive bounds a round also where the client would reconnect, which it does under the context it got.
func (s *redisHash) receive(ctx context.Context, sub *redis.PubSub) (any, error) {
	round, cancel := context.WithTimeout(ctx, s.round)
	defer cancel()
	return sub.ReceiveTimeout(round, s.round)
}
