package backend

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// trip is what goes to the server and back together.
type trip struct {
	legs []leg
}

// leg is one script call: of one errand, or of several plain takes under one plan.
type leg struct {
	script    *scripts.Script
	plan      *plan // of plain takes
	nowMicros int64 // the latest of theirs
	errands   []*errand
	loads     bool // it brings the script's source along
	alone     bool // no other errand joins it
	cmd       *redis.Cmd
}

// add finds the leg that an errand can go with, or makes one.
func (t *trip) add(e *errand) {
	if !e.plain {
		t.legs = append(t.legs, leg{script: e.script, alone: e.alone, errands: []*errand{e}})
		return
	}
	alone := e.alone || e.solo.apart()
	for i := range t.legs {
		if g := &t.legs[i]; !alone && !g.alone && g.plan != nil && (g.plan == e.plan || g.plan.of(e.plan.limits)) {
			g.errands = append(g.errands, e)
			g.nowMicros = max(g.nowMicros, e.nowMicros)
			return
		}
	}
	t.legs = append(t.legs, leg{script: e.plan.script, plan: e.plan, nowMicros: e.nowMicros, alone: alone, errands: []*errand{e}})
}

// run makes the calls. The first of each script that isn't known to the server brings its source along. A call that goes alone
// does that for itself: another may be refused before the server has read the source.
func (t *trip) run(ctx context.Context, client redis.UniversalClient) {
	for i := range t.legs {
		leg := &t.legs[i]
		leg.loads = leg.errands[0].loads
		for j := range i {
			if before := &t.legs[j]; before.loads && before.script == leg.script && !leg.alone {
				leg.loads = false
			}
		}
		leg.cmd = redis.NewCmd(ctx, leg.args()...)
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

func (g *leg) args() []any {
	n := len(g.errands)
	size := 4 + len(g.errands[0].args)
	if g.plan != nil {
		size = 5 + len(g.plan.args) + 3*n
	}
	args := make([]any, 0, size)
	if g.loads {
		args = append(args, "eval", g.script.Source, n)
	} else {
		args = append(args, "evalsha", g.script.SHA, n)
	}
	if g.plan != nil {
		return g.plan.appendArgs(args, g.nowMicros, g.errands)
	}
	e := g.errands[0]
	return append(append(args, e.key), e.args...)
}

// settle gives each errand its outcome, and appends to again those that are to be sent once more.
func (g *leg) settle(again []*errand) []*errand {
	reply, err := g.cmd.Result()
	text, isText := reply.(string)
	if err != nil && !isReply(err) && isText && text != "" {
		err = nil // the connection was lost after this reply, and the client says so of the whole pipeline
	}
	if err == nil && g.plan != nil {
		if !isText || strings.Count(text, " ") != len(g.errands) {
			err = limit.ErrCorruptState
		} else {
			text = text[1:] // each begins with a space
		}
	}
	unknown := err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
	refused := err != nil && !unknown && isReply(err)
	if refused && g.alone && g.plan != nil && concernsPolicy(err) {
		g.errands[0].solo.refused()
	}
	// Redis refused a call of several before it wrote anything (see takes.lua): one of them may be the reason, and none
	// depends on another. A script that Lua stopped may have written, and so may one whose reply a proxy has replaced.
	split := refused && len(g.errands) > 1 && beforeWrite(err)
	if split && kindOfReply(err) == Corrupt {
		split, err = false, limit.ErrCorruptState
	}
	for _, e := range g.errands {
		e.shared = len(g.errands)
		switch {
		case unknown && !g.loads: // it did not run
			e.alone = e.loads // what should have brought the source along was refused
			e.loads = true
			again = append(again, e)
		case split:
			e.alone = true
			again = append(again, e)
		case err != nil || g.plan == nil:
			e.end(text, err)
		default:
			e.nowMicros = g.nowMicros
			var mine string
			if mine, text, _ = strings.Cut(text, " "); mine != "" {
				if mine[0] == '-' {
					e.end("", callguard.Unsent(scriptError(mine[1:]))) // nothing was written at this key
				} else {
					e.end(mine, nil)
				}
				continue
			}
			// This key is for take to say.
			e.args = takeArgs(g.plan.limits, limit.At{Micros: g.nowMicros}, e.cost, e.floor, limit.Move{})
			e.plain, e.loads = false, false
			again = append(again, e)
		}
	}
	return again
}
