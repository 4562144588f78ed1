package redispipe

import (
	"cmp"
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// pipeline is what goes to the server and back together.
type pipeline struct {
	commands []command
}

// command is one script call: of one evalCall, or of several takes or charges under one plan.
type command struct {
	script    *scripts.Script
	plan      *scripts.Plan // of takes, or of charges
	charges   bool
	nowMicros int64 // the latest of theirs
	calls     []*evalCall
	loads     bool // it brings the script's source along
	unshared  bool // no other call joins it
	cmd       *redis.Cmd
}

// add finds the command that a call can join, or makes one.
func (p *pipeline) add(e *evalCall) {
	if e.Plan == nil {
		p.commands = append(p.commands, command{script: e.Script, unshared: e.unshared, calls: []*evalCall{e}})
		return
	}
	unshared := e.unshared || e.isolation.unshared()
	for i := range p.commands {
		c := &p.commands[i]
		if !unshared && !c.unshared && c.plan != nil && c.charges == (e.Mark != nil) && (c.plan == e.Plan || c.plan.Covers(e.Plan.Limits)) {
			c.calls = append(c.calls, e)
			c.nowMicros = max(c.nowMicros, e.NowMicros)
			return
		}
	}
	p.commands = append(p.commands, command{
		script: e.Plan.Script, plan: e.Plan, charges: e.Mark != nil, nowMicros: e.NowMicros, unshared: unshared, calls: []*evalCall{e},
	})
}

// encode prepares the commands. The first command of each script that the server doesn't know brings its source along; an unshared
// one brings its own, because another may be refused before the server has read the source.
func (p *pipeline) encode(ctx context.Context) {
	for i := range p.commands {
		c := &p.commands[i]
		if c.charges {
			c.script = &scripts.Charge
		} else if c.plan != nil {
			c.script = c.plan.ScriptFor(c.nowMicros, len(c.calls), &c.calls[0].KeyTake)
		}
		c.loads = c.calls[0].loads
		for j := range i {
			if before := &p.commands[j]; before.loads && before.script == c.script && !c.unshared {
				c.loads = false
			}
		}
		c.cmd = redis.NewCmd(ctx, c.args()...)
	}
}

// exec makes the round trip. A panic in it is the error of all commands.
func (p *pipeline) exec(ctx context.Context, client *redis.Client) {
	var panicked error
	defer func() {
		if panicked != nil {
			for i := range p.commands {
				p.commands[i].cmd.SetErr(panicked)
			}
		}
	}()
	defer callguard.Recover(&panicked)
	if len(p.commands) == 1 {
		_ = client.Process(ctx, p.commands[0].cmd)
		return
	}
	pipe := client.Pipeline()
	for i := range p.commands {
		_ = pipe.Process(ctx, p.commands[i].cmd) // it is only queued
	}
	_, _ = pipe.Exec(ctx)
}

func (c *command) args() []any {
	n := len(c.calls)
	size := 4 + len(c.calls[0].Args)
	if c.plan != nil {
		size = 3 + c.plan.Size(n)
	}
	args := make([]any, 0, size)
	if c.loads {
		args = append(args, "eval", c.script.Source, n)
	} else {
		args = append(args, "evalsha", c.script.SHA, n)
	}
	if c.charges {
		return c.plan.AppendCharges(args, c.nowMicros, n, func(i int) (*scripts.KeyTake, *scripts.KeyMark) {
			return &c.calls[i].KeyTake, c.calls[i].Mark
		})
	}
	if c.plan != nil {
		return c.plan.AppendArgs(c.script, args, c.nowMicros, n, func(i int) *scripts.KeyTake { return &c.calls[i].KeyTake })
	}
	return append(append(args, c.calls[0].Key), c.calls[0].Args...)
}

// deliver gives each call its outcome, and appends to retry those that are to be sent once more.
func (c *command) deliver(retry []*evalCall) []*evalCall {
	reply, err := c.cmd.Result()
	text, isText := reply.(string)
	if err != nil && !IsReply(err) && isText && text != "" {
		err = nil // the connection was lost after this reply, and the client says so of the whole pipeline
	}
	var replies scripts.Replies
	if err == nil && c.charges {
		replies, err = scripts.ParseCharges(text, len(c.calls))
	} else if err == nil && c.plan != nil {
		replies, err = scripts.ParseTakes(c.script, text, len(c.calls))
	}
	unknown := err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
	refused := err != nil && !unknown && IsReply(err)
	if refused && c.unshared && c.plan != nil && concernsPolicy(err) {
		c.calls[0].isolation.refused()
	}
	// Redis refused a call for several keys before it wrote anything (see takes.lua). One of the keys may be the reason, and none
	// depends on another. A script that Lua stopped may have written, and so may one whose reply a proxy has replaced.
	split := refused && len(c.calls) > 1 && BeforeWrite(err)
	if split && IsCorrupt(err) {
		split, err = false, state.ErrCorruptState
	}
	for _, e := range c.calls {
		e.shared, e.script = len(c.calls), c.script
		switch {
		case unknown && !c.loads: // it did not run
			e.unshared = e.loads // the command that should have brought the source along was refused
			e.loads = true
			retry = append(retry, e)
		case split:
			e.unshared = true
			retry = append(retry, e)
		case err != nil || c.plan == nil:
			e.end(text, err)
		default:
			e.NowMicros = c.nowMicros
			switch mine, failed := replies.Next(); {
			case failed != "":
				err := scriptError(failed)
				e.end("", cmp.Or(Redirect(err), callguard.Unsent(err)))
			case mine != "":
				e.end(mine, nil)
			case c.charges:
				e.end("", state.ErrCorruptState)
			default:
				e.Args = scripts.TakeArgs(c.plan.Limits, state.At{Micros: c.nowMicros}, e.Cost, e.Floor, state.Move{})
				e.Plan, e.loads = nil, false
				retry = append(retry, e)
			}
		}
	}
	return retry
}
