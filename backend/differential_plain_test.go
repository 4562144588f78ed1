//go:build unix

package backend_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// TestDifferentialPlain does it with takes that may go together: a script of their own serves them.
func TestDifferentialPlain(t *testing.T) { differ(t, drawPlainHistory, 4) }

// plain reports whether takes under the policy may go together with others.
func (c *contest) plain() bool {
	l := &c.policy.Limits[0]
	return len(c.policy.Limits) == 1 && l.Algorithm == limit.FixedWindow && l.Alignment != limit.KeyStaggered
}

// one reports whether what is stored is one plain count under the policy's limit, and until when it counts (us).
func (c *contest) one(stored string) (end int64, ok bool) {
	id, body, _ := strings.Cut(stored, ":")
	reset, used, _ := strings.Cut(body, ",")
	digits, closed := strings.CutSuffix(used, ";")
	end, err := strconv.ParseInt(reset, 10, 64)
	_, bad := strconv.ParseUint(digits, 10, 63)
	return end * 1000, closed && err == nil && bad == nil && id == string(c.policy.Limits[0].AppendID(nil))
}

// goesOn reports whether a plain take goes on in a window that is stored, whose expiry then stays what it is.
func (c *contest) goesOn(stored string) bool {
	end, ok := c.one(stored)
	return ok && end > c.at.Micros
}

func (c *contest) keepsExpiry(key string, kept time.Duration) error {
	if now := c.client.PExpireTime(context.Background(), key).Val(); now != kept {
		return fmt.Errorf("the expiry of an open window moved from %s to %s", kept, now)
	}
	return nil
}

// together takes from several keys in one script call, and from the same one more than once.
func (c *contest) together(op *operation) error {
	if !c.plain() {
		return c.take(c.cost(op), nil)
	}
	ctx := context.Background()
	type held struct {
		state       limit.State
		was         string
		kept        time.Duration
		ours, wrote bool // whether the state is for the script, and has been charged
	}
	names := []string{c.stored(), c.stored() + "~", c.stored() + "~~"}
	store := make(map[string]*held)
	began := time.Now()
	c.note("together")
	for _, name := range names {
		h := &held{was: c.client.Get(ctx, name).Val(), kept: c.client.PExpireTime(ctx, name).Val()}
		_, h.ours = c.one(h.was)
		h.ours = h.ours || h.was == ""
		var err error
		if h.state, err = limit.ParseState(h.was); err != nil {
			return err
		}
		store[name] = h
	}
	l := &c.policy.Limits[0]
	var keys []string
	var costs []any
	for i := range 2 + op.pick%4 {
		cost := c.cost(op)
		switch (op.cost2 >> (4 * i)) % 4 {
		case 0:
			cost = 1
		case 1:
			cost = cost/3 + 1
		}
		keys = append(keys, names[(op.pick2>>(2*i))%uint64(len(names))])
		costs = append(costs, min(cost, l.Max))
	}
	args := []any{c.at.Micros, l.AppendID(nil), l.Max, l.End(c.at)}
	if op.pick%3 > 0 {
		args = append(args, costs...)
	}
	replies, err := c.eval(ctx, keys, args)
	if err != nil || len(replies) != len(keys) {
		return fmt.Errorf("takes: %v, %v", replies, err)
	}
	for i, reply := range replies {
		h, cost := store[keys[i]], int64(1)
		if len(args) > 4 {
			cost = costs[i].(int64)
		}
		if c.note(" %s %d -> %q", keys[i], cost, reply); !h.ours {
			if reply != "" {
				return fmt.Errorf("takes answers %q for %q, which is for take", reply, h.was)
			}
			continue
		}
		want := h.state.Take(c.policy, c.at, cost)
		if keys[i] == c.stored() {
			c.last = c.model.Take(c.policy, c.at, cost)
			if c.last.Allowed {
				c.receipts = append(c.receipts, c.last.Receipt())
			}
		}
		if want.Allowed {
			c.allowed++
			h.wrote = true
		} else {
			c.denied++
		}
		if reply == "" || (reply[0] == '1') != want.Allowed {
			return fmt.Errorf("takes answers %q, package limit %s with %s", reply, say(&want), h.state.String())
		}
		got, err := limit.ParseState(reply[1:])
		if err != nil {
			return err
		}
		if mine, want := settled(got, c.at), settled(h.state, c.at); !mine.Equal(&want) {
			return fmt.Errorf("takes answers %q, package limit has %s", reply, want.String())
		}
	}
	for name, h := range store {
		now := c.client.Get(ctx, name).Val()
		got, err := limit.ParseState(now)
		if err != nil {
			return err
		}
		mine, want := settled(got, c.at), settled(h.state, c.at)
		switch {
		case !mine.Equal(&want):
			err = fmt.Errorf("%s holds %s, package limit has %s", name, mine.String(), want.String())
		case !h.wrote && now != h.was:
			err = fmt.Errorf("%s held %s and holds %s, and nothing was admitted", name, h.was, now)
		case !h.wrote || c.goesOn(h.was):
			err = c.keepsExpiry(name, h.kept)
		case name == c.stored():
			err = c.checkExpiry(began, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eval runs takes as a backend does, and so what stands in for it.
func (c *contest) eval(ctx context.Context, keys []string, args []any) ([]string, error) {
	replies, err := c.through.EvalSha(ctx, scripts.Takes.SHA, keys, args...).StringSlice()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		replies, err = c.through.Eval(ctx, scripts.Takes.Source, keys, args...).StringSlice()
	}
	return replies, err
}
