//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

// garbage is no state, and every script can tell.
var garbage = []string{
	"garbage", "5", "f1m", "f1m:", "f1m:;", ":;", ";", "f1m:9999999999999,1;x", "{}", "\xff\x00", " ",
	"f2h:1900000000000,111111111111111111;", strings.Repeat("f2h:1900000000000,1;", 257),
}

// spoil puts garbage in the key's place, which every call must leave alone.
func (c *contest) spoil(text string) error {
	ctx := context.Background()
	c.note("the key holds %q", text)
	defer c.lose()
	if err := c.client.Set(ctx, c.stored(), text, 0).Err(); err != nil {
		return err
	}
	_, taken := c.redis.Take(ctx, c.request(1, nil))
	_, charged := c.redis.Charge(ctx, c.request(1, nil), state.Mark{})
	calls := map[string]error{
		"take": taken, "charge": charged, "reset": c.redis.Reset(ctx, c.request(1, nil)), "grant": c.redis.Grant(ctx, c.request(1, nil), 1), "seed": c.redis.Seed(ctx, c.request(1, nil), state.State{}),
	}
	if r := c.receipt(&operation{}); r != nil {
		calls["refund"] = c.redis.Refund(ctx, c.request(1, nil), *r, 1)
	}
	for name, err := range calls {
		var failed *backend.Error
		if !errors.As(err, &failed) || failed.Kind != backend.Corrupt || failed.MayHaveCharged {
			return fmt.Errorf("%s with %q stored: %v", name, text, err)
		}
	}
	if now := c.client.Get(ctx, c.stored()).Val(); now != text {
		return fmt.Errorf("%q was replaced by %q", text, now)
	}
	return nil
}

// spoilType puts a value of another type in the key's place, which a take must leave alone.
func (c *contest) spoilType() error {
	ctx := context.Background()
	c.note("the key holds a hash")
	c.lose()
	defer c.lose()
	if err := c.client.HSet(ctx, c.stored(), "field", "value").Err(); err != nil {
		return err
	}
	_, taken := c.redis.Take(ctx, c.request(1, nil))
	_, charged := c.redis.Charge(ctx, c.request(1, nil), state.Mark{})
	for _, err := range []error{taken, charged} {
		var failed *backend.Error
		if !errors.As(err, &failed) || failed.Kind != backend.Misconfigured || failed.MayHaveCharged {
			return fmt.Errorf("take or charge with a hash stored: %v", err)
		}
	}
	if kind := c.client.Type(ctx, c.stored()).Val(); kind != "hash" {
		return fmt.Errorf("a hash was replaced by a %s", kind)
	}
	return nil
}
