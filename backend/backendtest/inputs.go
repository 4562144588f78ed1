package backendtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// testBadInput: what is refused is refused by a *limit.Error before anything is charged, without a word of the key.
func testBadInput(t *testing.T, s *subject) {
	const key = "secret-7f3a"
	policy := &limit.Policy{Name: "suite", Limits: []limit.Limit{limit.Fixed(5, time.Hour), limit.TokenBucket(9, time.Hour, 3)}}
	good := backend.Request{Key: key, Policy: policy, Cost: 1}
	ctx := context.Background()
	var none context.Context
	type bad struct {
		name   string
		ctx    context.Context
		req    backend.Request
		cost   bool // it is the cost that is bad
		exceed bool
	}
	refused := []bad{
		{name: "cost 0", ctx: ctx, req: backend.Request{Key: key, Policy: policy}, cost: true},
		{name: "cost -1", ctx: ctx, req: backend.Request{Key: key, Policy: policy, Cost: -1}, cost: true},
		{name: "least cost", ctx: ctx, req: backend.Request{Key: key, Policy: policy, Cost: -1 << 63}, cost: true},
		{name: "cost 2^53", ctx: ctx, req: backend.Request{Key: key, Policy: policy, Cost: 1 << 53}, cost: true},
		{name: "largest cost", ctx: ctx, req: backend.Request{Key: key, Policy: policy, Cost: 1<<63 - 1}, cost: true},
		{name: "cost above a quota", ctx: ctx, req: backend.Request{Key: key, Policy: policy, Cost: 4}, cost: true, exceed: true},
		{name: "cost above both", ctx: ctx, req: backend.Request{Key: key, Policy: policy, Cost: 6}, cost: true, exceed: true},
		{name: "no key", ctx: ctx, req: backend.Request{Policy: policy, Cost: 1}},
		{name: "no context", ctx: none, req: good},
		{name: "no policy", ctx: ctx, req: backend.Request{Key: key, Cost: 1}},
		{name: "no limit", ctx: ctx, req: backend.Request{Key: key, Cost: 1, Policy: &limit.Policy{Name: "suite"}}},
	}
	if _, ok := s.Backend.(backend.Sealer); ok {
		for name, move := range map[string]state.Move{
			"unknown mover": {Mover: state.Topology + 1, Version: 1}, "another one": {Mover: 255, Version: 1}, "mover without version": {Mover: 2},
			"version -1": {Version: -1}, "version 2^53": {Version: 1 << 53}, "unknown step": {Version: 1, Step: state.WithoutFloor + 1},
			"hold -1": {Version: 1, TTL: -1}, "hold too long": {Version: 1, TTL: 2*limit.MaxWindow + 1},
		} {
			req := good
			req.Move = move
			refused = append(refused, bad{name: name, ctx: ctx, req: req})
		}
	}
	receipt := (&mirror{subject: s, key: "another", policy: policy}).charge(t, 1)
	for _, bad := range refused {
		check := func(op string, err error) {
			t.Helper()
			var typed *limit.Error
			if !errors.As(err, &typed) || typed.Field == "" || typed.Bound == "" {
				t.Errorf("%s: %s gives %v, want a *limit.Error that names field and bound", bad.name, op, err)
			}
			if errors.Is(err, limit.ErrCostExceedsLimit) != bad.exceed {
				t.Errorf("%s: %s gives %v; ErrCostExceedsLimit: %t", bad.name, op, err, !bad.exceed)
			}
			if err != nil && strings.Contains(err.Error(), key) {
				t.Errorf("%s: %s names the key: %v", bad.name, op, err)
			}
		}
		_, err := s.Take(bad.ctx, bad.req)
		check("Take", err)
		if p, ok := s.Backend.(backend.Peeker); ok {
			_, err = p.Peek(bad.ctx, bad.req)
			check("Peek", err)
		}
		if c, ok := s.Backend.(backend.Charger); ok && !bad.exceed { // what has been spent counts, whatever a limit can hold
			_, err = c.Charge(bad.ctx, bad.req, state.Mark{})
			check("Charge", err)
		}
		if bad.cost { // what doesn't charge ignores it
			continue
		}
		if r, ok := s.Backend.(backend.Refunder); ok {
			check("Refund", r.Refund(bad.ctx, bad.req, receipt, 1))
		}
		if r, ok := s.Backend.(backend.Resetter); ok {
			check("Reset", r.Reset(bad.ctx, bad.req))
		}
		if g, ok := s.Backend.(backend.Granter); ok {
			check("Grant", g.Grant(bad.ctx, bad.req, 1))
		}
		if l, ok := s.Backend.(backend.Loader); ok {
			_, err = l.Load(bad.ctx, bad.req)
			check("Load", err)
		}
		if l, ok := s.Backend.(backend.Seeder); ok {
			check("Seed", l.Seed(bad.ctx, bad.req, state.State{}))
		}
		if l, ok := s.Backend.(backend.Sealer); ok {
			_, err = l.Seal(bad.ctx, bad.req)
			check("Seal", err)
		}
	}
	if l, ok := s.Backend.(backend.Sealer); ok {
		var typed *limit.Error
		if _, err := l.Seal(ctx, good); !errors.As(err, &typed) {
			t.Errorf("Seal without a version: %v, want a *limit.Error", err)
		}
	}
	if g, ok := s.Backend.(backend.Granter); ok {
		for _, extra := range []int64{0, -1, limit.MaxCount + 1} {
			var typed *limit.Error
			if err := g.Grant(ctx, good, extra); !errors.As(err, &typed) || typed.Field != "extra" {
				t.Errorf("Grant of %d: %v, want a *limit.Error", extra, err)
			}
		}
	}
	m := &mirror{subject: s, key: key, policy: policy}
	m.play(t, step{0, 1, "ok 4@1h0m0s 2@6m40s"}) // nothing was charged
}

// testContext: a context that has ended charges nothing, and the call returns the context's error.
func testContext(t *testing.T, s *subject) {
	m := s.mirror("secret-7f3a", limit.Fixed(5, time.Hour))
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, expired: context.DeadlineExceeded} {
		check := func(op string, err error) {
			t.Helper()
			var failed *backend.Error
			if !errors.Is(err, want) {
				t.Errorf("%s with a context that ended: %v, want %v", op, err, want)
			} else if errors.As(err, &failed) && failed.MayHaveCharged {
				t.Errorf("%s with a context that had ended before may have charged: %v", op, err)
			} else if strings.Contains(err.Error(), m.key) {
				t.Errorf("%s names the key: %v", op, err)
			}
		}
		_, err := s.Take(ctx, m.request(1, nil))
		check("Take", err)
		if p, ok := s.Backend.(backend.Peeker); ok {
			_, err = p.Peek(ctx, m.request(1, nil))
			check("Peek", err)
		}
		if l, ok := s.Backend.(backend.Loader); ok {
			_, err = l.Load(ctx, m.request(1, nil))
			check("Load", err)
		}
		if l, ok := s.Backend.(backend.Seeder); ok {
			known := m.mirror("x", m.policy.Limits...)
			known.model.Take(m.policy, m.at(), 3)
			check("Seed", l.Seed(ctx, m.request(1, nil), known.model))
		}
		if r, ok := s.Backend.(backend.Resetter); ok {
			check("Reset", r.Reset(ctx, m.request(1, nil)))
		}
		if c, ok := s.Backend.(backend.Charger); ok {
			_, err = c.Charge(ctx, m.request(1, nil), state.Mark{})
			check("Charge", err)
		}
		if g, ok := s.Backend.(backend.Granter); ok {
			check("Grant", g.Grant(ctx, m.request(1, nil), 1))
		}
		if p, ok := s.Backend.(backend.Pinger); ok {
			check("Ping", p.Ping(ctx))
		}
	}
	m.play(t, step{0, 1, "ok 4@1h0m0s"})
	receipt := m.charge(t, 1)
	if r, ok := s.Backend.(backend.Refunder); ok {
		if err := r.Refund(cancelled, m.request(1, nil), receipt, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Refund with a context that ended: %v", err)
		}
	}
	m.play(t, step{0, 1, "ok 2@1h0m0s"})
}
