//go:build unix

package redisbackend_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// TestDifferentialPlain does it with takes that may go together: scripts of their own serve them.
func TestDifferentialPlain(t *testing.T) { differ(t, drawPlainHistory, 2) }

// isPlain reports whether takes under limits may go together with others.
func isPlain(limits []limit.Limit) bool {
	return !slices.ContainsFunc(limits, func(l limit.Limit) bool {
		return l.Algorithm == limit.Bucket || l.Alignment == limit.KeyStaggered
	})
}

// window is an entry of a state, as text: its end (ms) and its counts, of a sliding limit newest first.
type window struct {
	end    int64
	counts []string
}

// windows takes a state apart; false if it isn't one entry for each limit of the policy, in its order.
func (c *contest) windows(st string) ([]window, bool) {
	var all []window
	for i := range c.policy.Limits {
		l := &c.policy.Limits[i]
		entry, rest, _ := strings.Cut(st, ";")
		id, body, _ := strings.Cut(entry, ":")
		fields := strings.Split(body, ",")
		end, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || id != string(state.AppendID(nil, l)) {
			return nil, false
		}
		if l.Algorithm == limit.SlidingWindow {
			fields = fields[1:]
		}
		all = append(all, window{end, fields[1:]})
		st = rest
	}
	return all, st == ""
}

// ours reports whether a script for several keys must decide on what is stored, beside a floor. It leaves no more than
// this to take, so that what is common is fast.
func (c *contest) ours(stored, floor string) bool {
	have, ok := c.windows(stored)
	if !ok && stored != "" {
		return false
	}
	if floor == "" || floor == stored {
		return true
	}
	known, ok := c.windows(floor)
	for i := range known {
		f, l := &known[i], &c.policy.Limits[i]
		switch {
		case f.end*1000 <= c.at.Micros:
		case have == nil || f.end > have[i].end:
			return false
		case l.Algorithm == limit.SlidingWindow:
			ok = ok && knows(&have[i], f, l)
		case f.end == have[i].end:
			ok = ok && atMost(f.counts[0], have[i].counts[0])
		default:
			ok = ok && atMost(left(f.counts[0]), have[i].counts[0])
		}
	}
	return ok
}

// knows reports whether a sliding window has all sub-buckets of an earlier copy that are still in it; of its newest it may
// have charged more.
func knows(have, floor *window, l *limit.Limit) bool {
	step, size := int((have.end-floor.end)/l.Precision.Milliseconds()), int(l.Window/l.Precision)
	if step >= size {
		return true
	}
	older := floor.counts[1:min(len(floor.counts), size-step)]
	for step > 0 && len(older) > 0 && older[len(older)-1] == "0" {
		older = older[:len(older)-1]
	}
	return step < len(have.counts) && atMost(floor.counts[0], have.counts[step]) && slices.Equal(older, have.counts[step+1:])
}

// atMost compares counts: each of charged, refunded and void.
func atMost(a, b string) bool {
	x, y := strings.Split(a+"-0-0", "-"), strings.Split(b+"-0-0", "-")
	for i := range 3 {
		n, err := strconv.ParseInt(x[i], 10, 64)
		m, err2 := strconv.ParseInt(y[i], 10, 64)
		if err != nil || err2 != nil || n > m {
			return false
		}
	}
	return true
}

// left is what is used of a count.
func left(count string) string {
	charged, rest, _ := strings.Cut(count, "-")
	refunded, _, _ := strings.Cut(rest, "-")
	c, _ := strconv.ParseInt(charged, 10, 64)
	r, _ := strconv.ParseInt(refunded, 10, 64)
	return strconv.FormatInt(c-r, 10)
}

// goesOn reports whether a plain take counts where takes were counted before, so that the expiry stays what it is.
func (c *contest) goesOn(stored string) bool {
	all, ok := c.windows(stored)
	for i := range all {
		l := &c.policy.Limits[i]
		if all[i].end*1000 <= c.at.Micros || l.Algorithm == limit.SlidingWindow && all[i].end < state.End(l, c.at) {
			return false
		}
	}
	return ok
}

func (c *contest) keepsExpiry(key string, kept time.Duration) error {
	if now := c.client.PExpireTime(context.Background(), key).Val(); now != kept {
		return fmt.Errorf("the expiry of an open window moved from %s to %s", kept, now)
	}
	return nil
}

// held is a key of a call for several, and what package limit/state makes of it.
type held struct {
	state state.State
	was   string
	text  string // what is stored by now
	kept  time.Duration
	wrote bool
}

// together takes from several keys in one script call, and from the same one more than once.
func (c *contest) together(op *operation) error {
	if !isPlain(c.policy.Limits) {
		return c.take(c.cost(op), nil)
	}
	ctx := context.Background()
	names := []string{c.stored(), c.stored() + "~", c.stored() + "~~"}
	store := make(map[string]*held)
	began := time.Now()
	c.note("together")
	for _, name := range names {
		h := &held{was: c.client.Get(ctx, name).Val(), kept: c.client.PExpireTime(ctx, name).Val()}
		var err error
		if h.state, err = state.ParseState(h.was); err != nil {
			return err
		}
		h.text = h.was
		store[name] = h
	}
	var keys, floors []string
	var costs []int64
	for i := range 2 + op.pick%4 {
		cost := c.cost(op)
		switch (op.cost2 >> (4 * i)) % 4 {
		case 0:
			cost = 1
		case 1:
			cost = cost/3 + 1
		}
		key := names[(op.pick2>>(2*i))%uint64(len(names))]
		keys, costs = append(keys, key), append(costs, cost)
		floors = append(floors, c.floorBeside(op, i, store[key].was))
	}
	script := &scripts.Takes
	args := []any{c.at.Micros, len(c.policy.Limits)}
	if l := &c.policy.Limits[0]; len(c.policy.Limits) == 1 && l.Algorithm == limit.FixedWindow && op.pick%5 > 0 {
		script, args = &scripts.TakesFixed, args[:1]
	}
	for i := range c.policy.Limits {
		l := &c.policy.Limits[i]
		args = append(args, state.AppendID(nil, l), l.Max, state.End(l, c.at))
		if l.Algorithm == limit.SlidingWindow {
			args = append(args, l.Precision.Milliseconds(), int64(l.Window/l.Precision))
		}
	}
	detail := op.pick % 4
	for i := range costs {
		if detail == 0 {
			costs[i] = 1
		} else {
			args = append(args, costs[i])
		}
	}
	for i := range floors {
		if detail < 2 {
			floors[i] = ""
		} else {
			args = append(args, floors[i])
		}
	}
	plan := new(scripts.Plans).Find(c.policy.Limits)
	if one := plan.ScriptFor(c.at.Micros, 1, &scripts.KeyTake{Cost: 1}); one == &scripts.TakeOne && op.pick2>>60 < 8 {
		script, keys, costs, floors = one, keys[:1], []int64{1}, []string{""}
		var made scripts.Args
		plan.AppendArgs(&made, one, c.at.Micros, 1, func(int) *scripts.KeyTake { return new(scripts.KeyTake) })
		args = made.List[1:]
	}
	replies, err := c.eval(ctx, script, keys, args)
	if err != nil || len(replies) != len(keys) {
		return fmt.Errorf("%s: %q, %v", script.Name, replies, err)
	}
	for i, reply := range replies {
		c.note(" %s %d of %q, floor %q -> %q;", keys[i], costs[i], store[keys[i]].text, floors[i], reply)
		if err := c.check(store[keys[i]], keys[i] == c.stored(), costs[i], floors[i], reply); err != nil {
			return fmt.Errorf("%s: %w", script.Name, err)
		}
	}
	for name, h := range store {
		now := c.client.Get(ctx, name).Val()
		got, err := state.ParseState(now)
		if err != nil {
			return err
		}
		mine, want := settled(got, c.at), settled(h.state, c.at)
		switch {
		case !mine.Equal(&want):
			err = fmt.Errorf("%s holds %s, package limit/state has %s", name, mine.String(), want.String())
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

// floorBeside is what a caller may know of a key: nothing, what is stored, or what has been seen before, of this key or
// another.
func (c *contest) floorBeside(op *operation, i uint64, stored string) string {
	switch n := op.pick >> (8 + 3*i) % 8; {
	case n < 2:
		return ""
	case n < 4:
		return stored
	case n < 6 && len(c.seen) > 0:
		return c.seen[op.pick2>>(10+4*i)%uint64(len(c.seen))]
	case n == 6: // as much given back, but by a reset
		return givenBack.ReplaceAllString(stored, "$1-1$2")
	}
	return c.floor(op).String()
}

var givenBack = regexp.MustCompile(`(,\d+-\d+)([,;])`)

// check compares one reply with package limit/state.
func (c *contest) check(h *held, own bool, cost int64, floor, reply string) error {
	ours := c.ours(h.text, floor)
	if reply == "" {
		if ours {
			return fmt.Errorf("%q, with floor %q, is left to take", h.text, floor)
		}
		return nil
	}
	known, err := state.ParseState(floor)
	if err != nil {
		return err
	}
	st := h.state.Clone()
	news, refusal := st.Arrive(c.policy, c.at, state.Move{}, &known, true)
	if news || refusal != nil || !ours {
		return fmt.Errorf("%q decides on %q, with floor %q, which is for take", reply, h.text, floor)
	}
	want := h.state.Take(c.policy, c.at, cost)
	if own {
		c.last = c.model.Take(c.policy, c.at, cost)
		if c.last.Allowed {
			c.receipts = append(c.receipts, c.last.Receipt())
		}
	}
	if (reply[0] == '1') != want.Allowed {
		return fmt.Errorf("the reply is %q, package limit/state says %s with %s", reply, backendtesting.Say(&want), h.state.String())
	}
	if !want.Allowed {
		c.denied++
		if reply[1:] != h.text {
			return fmt.Errorf("%q denies with %q stored", reply, h.text)
		}
		return nil
	}
	c.allowed++
	h.wrote, h.text = true, reply[1:]
	c.seen = append(c.seen, h.text)
	if got := h.state.String(); got != h.text {
		return fmt.Errorf("the reply is %q, package limit/state has %s", reply, got)
	}
	return nil
}

// eval runs a script as a backend does, and so what stands in for it. It returns a reply for each key.
func (c *contest) eval(ctx context.Context, script *scripts.Script, keys []string, args []any) ([]string, error) {
	reply, err := c.through.EvalSha(ctx, script.SHA, keys, args...).Text()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = c.through.Eval(ctx, script.Source, keys, args...).Text()
	}
	if script == &scripts.TakeOne {
		if reply != "" && reply[0] != '0' {
			reply = "1" + reply
		}
		return []string{reply}, err
	}
	return strings.Split(reply, " ")[1:], err
}
