package redispipe

import (
	"cmp"
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// pipeline is what goes to the server and back together. Its memory serves one round trip after the other.
type pipeline struct {
	commands []command
	keepsCmd bool // no hook of an application sees the commands, so none may still hold one that is used again
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
	args      scripts.Args
	cmd       *redis.Cmd
}

// add finds the command that a call can join, or makes one.
func (p *pipeline) add(e *evalCall) {
	if e.Plan == nil {
		c := p.next()
		c.script, c.unshared, c.calls = e.Script, e.unshared, append(c.calls, e)
		return
	}
	unshared := e.unshared || e.isolation.unshared()
	joins := !unshared && (e.Mark != nil || e.Plan.Script != nil)
	for i := range p.commands {
		c := &p.commands[i]
		if joins && !c.unshared && c.plan != nil && c.charges == (e.Mark != nil) && (c.plan == e.Plan || c.plan.Covers(e.Plan.Limits)) {
			c.calls = append(c.calls, e)
			c.nowMicros = max(c.nowMicros, e.NowMicros)
			return
		}
	}
	c := p.next()
	c.plan, c.charges, c.nowMicros, c.unshared, c.calls = e.Plan, e.Mark != nil, e.NowMicros, unshared, append(c.calls, e)
}

// next returns one more command, empty but for its memory.
func (p *pipeline) next() *command {
	n := len(p.commands)
	if n == cap(p.commands) {
		p.commands = append(p.commands, command{})
	}
	p.commands = p.commands[:n+1]
	c := &p.commands[n]
	*c = command{calls: c.calls, args: c.args, cmd: c.cmd}
	return c
}

// reset empties the pipeline, and forgets the calls.
func (p *pipeline) reset() {
	for i := range p.commands {
		c := &p.commands[i]
		clear(c.calls)
		c.calls = c.calls[:0]
		if p.keepsCmd {
			clear(c.args.List)
		} else { // hooks of the application's client may hold the command
			c.args, c.cmd = scripts.Args{}, nil
		}
	}
	p.commands = p.commands[:0]
}

// encode prepares the commands. The first command of each script that the server doesn't know brings its source along; an unshared
// one brings its own, because another may be refused before the server has read the source.
func (p *pipeline) encode(ctx context.Context) {
	if p.keepsCmd { // longer than the caller's context
		ctx = context.Background()
	}
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
		c.encode(ctx)
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

// encode makes the command for the client, of the one before if that has as many arguments.
func (c *command) encode(ctx context.Context) {
	n := len(c.calls)
	if c.args.List == nil {
		size := 4 + len(c.calls[0].Args)
		if c.plan != nil {
			size = 3 + c.plan.Size(n)
		}
		c.args.List = make([]any, 0, size)
	}
	before := c.args.List
	c.args.List = c.script.AppendCall(before[:0], n, c.loads)
	if c.charges {
		c.args.List = c.plan.AppendCharges(c.args.List, c.nowMicros, n, func(i int) (*scripts.KeyTake, *state.Mark) {
			return &c.calls[i].KeyTake, c.calls[i].Mark
		})
	} else if c.plan != nil {
		c.plan.AppendArgs(&c.args, c.script, c.nowMicros, n, func(i int) *scripts.KeyTake { return &c.calls[i].KeyTake })
	} else {
		c.args.List = append(append(c.args.List, c.calls[0].Key), c.calls[0].Args...)
	}
	if c.cmd != nil && len(c.args.List) == len(before) && &c.args.List[0] == &before[0] {
		c.cmd.SetVal(nil)
		c.cmd.SetErr(nil)
		return
	}
	c.cmd = redis.NewCmd(ctx, c.args.List...)
}

// deliver gives each call its outcome, and appends to retry those that are to be sent once more.
func (c *command) deliver(retry []*evalCall) []*evalCall {
	reply, err := c.cmd.Result()
	text, isText := reply.(string)
	if err != nil && !IsReply(err) && text != "" {
		err = nil // the connection was lost after this reply, and the client says so of the whole pipeline
	}
	if err == nil && c.plan != nil && !isText {
		err = state.ErrCorruptState
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
		case err != nil || c.plan == nil || c.script == &scripts.Take:
			e.end(text, err)
		default:
			e.NowMicros = c.nowMicros
			switch mine, failed := replies.Next(); {
			case failed != "":
				err := cause(ReplyError(strings.TrimSpace(failed)))
				e.end("", cmp.Or(Redirect(err), callguard.Unsent(err)))
			case mine != "":
				e.end(mine, nil)
			case c.charges:
				e.end("", state.ErrCorruptState)
			default:
				e.Args = c.plan.TakeArgs(c.nowMicros, &e.KeyTake)
				e.Plan, e.loads = nil, false
				retry = append(retry, e)
			}
		}
	}
	return retry
}
