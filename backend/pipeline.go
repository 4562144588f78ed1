package backend

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// trip is what goes to the server and back together.
type pipeline struct {
	commands []command
}

// command is one script call: of one evalCall, or of several plain takes under one plan.
type command struct {
	script    *scripts.Script
	plan      *scripts.Plan // of plain takes
	nowMicros int64         // the latest of theirs
	calls     []*evalCall
	loads     bool // it brings the script's source along
	alone     bool // no other evalCall joins it
	cmd       *redis.Cmd
}

// add finds the command that an evalCall can go with, or makes one.
func (t *pipeline) add(e *evalCall) {
	if !e.plain {
		t.commands = append(t.commands, command{script: e.script, alone: e.unshared, calls: []*evalCall{e}})
		return
	}
	alone := e.unshared || e.isolation.apart()
	for i := range t.commands {
		if g := &t.commands[i]; !alone && !g.alone && g.plan != nil && (g.plan == e.plan || g.plan.Covers(e.plan.Limits)) {
			g.calls = append(g.calls, e)
			g.nowMicros = max(g.nowMicros, e.nowMicros)
			return
		}
	}
	t.commands = append(t.commands, command{script: e.plan.Script, plan: e.plan, nowMicros: e.nowMicros, alone: alone, calls: []*evalCall{e}})
}

// run makes the calls. The first of each script that isn't known to the server brings its source along. A call that goes alone
// does that for itself: another may be refused before the server has read the source.
func (t *pipeline) run(ctx context.Context, client redis.UniversalClient) {
	for i := range t.commands {
		command := &t.commands[i]
		command.loads = command.calls[0].loads
		for j := range i {
			if before := &t.commands[j]; before.loads && before.script == command.script && !command.alone {
				command.loads = false
			}
		}
		command.cmd = redis.NewCmd(ctx, command.args()...)
	}
	if len(t.commands) == 1 {
		_ = client.Process(ctx, t.commands[0].cmd)
		return
	}
	pipe := client.Pipeline()
	for i := range t.commands {
		_ = pipe.Process(ctx, t.commands[i].cmd) // it is only queued
	}
	_, _ = pipe.Exec(ctx)
}

func (g *command) args() []any {
	n := len(g.calls)
	size := 4 + len(g.calls[0].args)
	if g.plan != nil {
		size = 3 + g.plan.Size(n)
	}
	args := make([]any, 0, size)
	if g.loads {
		args = append(args, "eval", g.script.Source, n)
	} else {
		args = append(args, "evalsha", g.script.SHA, n)
	}
	if g.plan != nil {
		return g.plan.AppendArgs(args, g.nowMicros, n, func(i int) *scripts.KeyTake { return &g.calls[i].KeyTake })
	}
	e := g.calls[0]
	return append(append(args, e.Key), e.args...)
}

// deliver gives each evalCall its outcome, and appends to again those that are to be sent once more.
func (g *command) deliver(retry []*evalCall) []*evalCall {
	reply, err := g.cmd.Result()
	text, isText := reply.(string)
	if err != nil && !isReply(err) && isText && text != "" {
		err = nil // the connection was lost after this reply, and the client says so of the whole pipeline
	}
	var replies scripts.Replies
	if err == nil && g.plan != nil {
		replies, err = scripts.ParseTakes(text, len(g.calls))
	}
	unknown := err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
	refused := err != nil && !unknown && isReply(err)
	if refused && g.alone && g.plan != nil && concernsPolicy(err) {
		g.calls[0].isolation.refused()
	}
	// Redis refused a call of several before it wrote anything (see takes.lua): one of them may be the reason, and none
	// depends on another. A script that Lua stopped may have written, and so may one whose reply a proxy has replaced.
	split := refused && len(g.calls) > 1 && beforeWrite(err)
	if split && kindOfReply(err) == Corrupt {
		split, err = false, state.ErrCorruptState
	}
	for _, e := range g.calls {
		e.shared = len(g.calls)
		switch {
		case unknown && !g.loads: // it did not run
			e.unshared = e.loads // what should have brought the source along was refused
			e.loads = true
			retry = append(retry, e)
		case split:
			e.unshared = true
			retry = append(retry, e)
		case err != nil || g.plan == nil:
			e.end(text, err)
		default:
			e.nowMicros = g.nowMicros
			switch mine, failed := replies.Next(); {
			case failed != "":
				e.end("", callguard.Unsent(scriptError(failed)))
			case mine != "":
				e.end(mine, nil)
			default:
				e.args = scripts.TakeArgs(g.plan.Limits, state.At{Micros: g.nowMicros}, e.Cost, e.Floor, state.Move{})
				e.plain, e.loads = false, false
				retry = append(retry, e)
			}
		}
	}
	return retry
}
