package backend

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// trip is what goes to the server and back together.
type trip struct {
	legs []leg
}

// leg is one script call: of one errand, or of several plain takes under one limit.
type leg struct {
	script    *scripts.Script
	limit     limit.Limit // of plain takes
	nowMicros int64       // the latest of theirs
	errands   []*errand
	cmd       *redis.Cmd
}

// add finds the leg that an errand can go with, or makes one.
func (t *trip) add(e *errand) {
	g := leg{script: e.script, errands: []*errand{e}}
	if e.plain {
		for i := range t.legs {
			if have := &t.legs[i]; have.script == &scripts.Takes && have.limit == e.limit {
				have.errands = append(have.errands, e)
				have.nowMicros = max(have.nowMicros, e.nowMicros)
				return
			}
		}
		g.script, g.limit, g.nowMicros = &scripts.Takes, e.limit, e.nowMicros
	}
	t.legs = append(t.legs, g)
}

// run makes the calls. The first of each script that isn't known to the server brings its source along.
func (t *trip) run(ctx context.Context, client redis.UniversalClient) {
	for i := range t.legs {
		leg := &t.legs[i]
		loads := leg.errands[0].loads
		for j := range i {
			loads = loads && t.legs[j].script != leg.script
		}
		leg.cmd = redis.NewCmd(ctx, leg.args(loads)...)
	}
	if len(t.legs) == 1 {
		_ = client.Process(ctx, t.legs[0].cmd)
		return
	}
	pipe := client.Pipeline()
	for i := range t.legs {
		_ = pipe.Process(ctx, t.legs[i].cmd) // it is only queued
	}
	_, _ = pipe.Exec(ctx)
}

func (g *leg) args(loads bool) []any {
	n := len(g.errands)
	args := make([]any, 0, 8+2*n)
	if loads {
		args = append(args, "eval", g.script.Source, n)
	} else {
		args = append(args, "evalsha", g.script.SHA, n)
	}
	if g.script != &scripts.Takes {
		e := g.errands[0]
		return append(append(args, e.key), e.args...)
	}
	for _, e := range g.errands {
		args = append(args, &e.key)
	}
	args = append(args, g.nowMicros, g.limit.AppendID(nil), g.limit.Max, g.limit.End(limit.At{Micros: g.nowMicros}))
	costs := false
	for _, e := range g.errands {
		costs = costs || e.cost != 1
	}
	if costs {
		for _, e := range g.errands {
			args = append(args, e.cost)
		}
	}
	return args
}

// settle gives each errand its outcome, and appends to again those that are to be sent once more.
func (g *leg) settle(again []*errand) []*errand {
	reply, err := g.cmd.Result()
	if err != nil && !isReply(err) && came(reply) {
		err = nil // the connection was lost after this reply, and the client says so of the whole pipeline
	}
	replies, many := reply.([]any)
	for i, e := range g.errands {
		switch {
		case redis.HasErrorPrefix(err, "NOSCRIPT") && !e.loads: // it did not run
			e.loads = true
			again = append(again, e)
		case err != nil || g.script != &scripts.Takes:
			e.end(reply, err)
		case !many || len(replies) != len(g.errands):
			e.end(nil, limit.ErrCorruptState)
		case replies[i] == "": // this key is for take to say
			at := limit.At{Micros: g.nowMicros}
			e.args = takeArgs(&limit.Policy{Limits: []limit.Limit{e.limit}}, at, e.cost, nil, limit.Move{})
			e.plain, e.loads, e.nowMicros = false, false, g.nowMicros
			again = append(again, e)
		default:
			e.nowMicros = g.nowMicros
			e.end(replies[i], nil)
		}
	}
	return again
}

// came reports whether a take's reply was read to its end.
func came(reply any) bool {
	switch reply := reply.(type) {
	case string:
		return reply != ""
	case []any:
		return len(reply) > 0
	}
	return false
}
