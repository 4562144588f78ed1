package backendtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func hash(key string) uint64 { return keyhash.Sum(key) }

// all is every optional interface that memory has.
var all = []backendtest.Option{
	backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](), backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](),
	backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](),
	backendtest.Require[backend.Sealer](), backendtest.Require[control.Clock](), backendtest.Require[control.Publisher](),
}

// fragile is a backend with all optional interfaces that can be broken in one way at a time.
type fragile struct {
	now          func() time.Time
	broken       string
	states       map[string]*state.State
	announcement control.Announcement
	mu           sync.Mutex // guards states and what they point to, and announcement
	closed       atomic.Bool
}

func newFragile(now func() time.Time, broken string) *fragile {
	return &fragile{now: now, broken: broken, states: make(map[string]*state.State)}
}

func (b *fragile) name(req backend.Request) string {
	key, policy := req.Key, req.Policy.Name
	switch b.broken {
	case "key and policy run together":
		return policy + key
	case "policies share keys":
		policy = ""
	case "keys are cut":
		key = key[:min(len(key), 250)]
	case "keys end at NUL":
		key, _, _ = strings.Cut(key, "\x00")
	case "keys are trimmed":
		key = strings.TrimSpace(key)
	case "keys are lower case":
		key = strings.ToLower(key)
	case "keys are normalized":
		key = strings.NewReplacer("e\u0301", "\u00e9").Replace(key)
	case "keys are valid UTF-8":
		key = strings.ToValidUTF8(key, "\uFFFD")
	case "keys are escaped by halves":
		key = strings.ReplaceAll(key, " ", "%20")
	case "a hash tag is the key":
		if _, rest, ok := strings.Cut(key, "{"); ok {
			if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
				key = tag
			}
		}
	}
	return policy + "/" + key
}

func (b *fragile) at(req backend.Request) state.At {
	now := b.now().UnixMicro()
	switch b.broken {
	case "windows end early":
		now++
	case "windows end late":
		now--
	case "the wall clock decides":
		now = time.Now().UnixMicro()
	case "whole seconds":
		now -= now % 1_000_000
	}
	phase := keyhash.Sum(req.Key)
	if b.broken == "another hash" {
		phase++
	}
	return state.At{Micros: now, Phase: phase}
}

func (b *fragile) check(ctx context.Context, req *backend.Request, cost bool) error {
	refuse := func(field string) error {
		if b.broken == "errors name the key" {
			field += " of " + req.Key
		}
		return &limit.Error{Field: field, Value: "bad", Bound: "must be good"}
	}
	switch {
	case b.closed.Load() && b.broken != "works when closed":
		return backend.ErrClosed
	case ctx == nil && b.broken == "no context will do":
	case ctx == nil:
		return refuse("context")
	case req.Key == "" && b.broken != "no key will do":
		return refuse("key")
	case req.Policy == nil, len(req.Policy.Limits) == 0:
		return refuse("policy")
	case req.Move.Validate() != nil && b.broken != "any mover will do":
		return refuse("move")
	}
	if cost {
		err := req.Policy.CheckCost(req.Cost)
		switch {
		case b.broken == "cost 0 is free" && req.Cost == 0:
		case b.broken == "negative costs give back" && req.Cost < 0:
		case b.broken == "too large is denied" && errors.Is(err, limit.ErrCostExceedsLimit):
		case b.broken == "errors are plain" && err != nil:
			return errors.New("bad cost")
		case b.broken == "errors name the key" && err != nil:
			return refuse("cost")
		case err != nil:
			return err
		}
	}
	if ctx == nil || b.broken == "contexts are ignored" {
		return nil
	}
	if b.broken == "contexts end in silence" && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return ctx.Err()
}

func (b *fragile) state(req backend.Request) *state.State {
	name := b.name(req)
	if b.states[name] == nil {
		b.states[name] = new(state.State)
	}
	return b.states[name]
}

func (b *fragile) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := b.check(ctx, &req, true); err != nil {
		return backend.Result{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.at(req)
	st := b.state(req)
	if b.broken == "updates get lost" {
		read := st.Clone()
		b.mu.Unlock()
		runtime.Gosched()
		b.mu.Lock()
		*st = read
	}
	if err := b.enter(st, at, req, req.Floor, true); err != nil {
		return backend.Result{}, err
	}
	before := st.Clone()
	result := func(v state.Verdict) backend.Result {
		return backend.Result{Verdict: v, Now: at.Micros, Source: backend.Local, State: st.Clone()}
	}
	if b.broken == "a floor replaces" && req.Floor != nil {
		*st = req.Floor.Clone()
	}
	if req.Floor != nil && b.broken != "floors are ignored" {
		st.Join(req.Policy, at, req.Floor)
	}
	switch b.broken {
	case "limits are charged one by one":
		for i := range req.Policy.Limits {
			one := &limit.Policy{Limits: req.Policy.Limits[i : i+1]}
			if v := st.Take(one, at, req.Cost); !v.Allowed {
				return result(st.Taken(req.Policy, at, req.Cost, false)), nil
			}
		}
		return result(st.Taken(req.Policy, at, req.Cost, true)), nil
	case "only the first limit counts":
		one := &limit.Policy{Limits: req.Policy.Limits[:1]}
		v := st.Take(one, at, req.Cost)
		return result(st.Taken(req.Policy, at, req.Cost, v.Allowed)), nil
	case "a new policy starts afresh":
		kept := state.State{}
		kept.Join(req.Policy, at, st)
		*st = kept
	case "costs are floats":
		req.Cost = int64(float32(req.Cost))
	case "costs are one":
		req.Cost = 1
	}
	v := st.Take(req.Policy, at, req.Cost)
	if !v.Allowed {
		switch b.broken {
		case "denials are charged":
			for i := range req.Policy.Limits {
				st.Take(&limit.Policy{Limits: req.Policy.Limits[i : i+1]}, at, 1)
			}
		case "denials forget the floor":
			*st = before
		case "denials forget all":
			*st = state.State{}
		}
	}
	r := result(v)
	switch b.broken {
	case "without source":
		r.Source = backend.Unknown
	case "not exact":
		r.Guarantee, r.Cause = backend.Bounded, backend.ErrEvicted
	case "no cause":
		r.Guarantee = backend.Bounded
	case "a state of no use":
		r.State.Reset(req.Policy, at)
	case "the floor is kept":
		if req.Floor != nil {
			*st = *req.Floor
		}
	}
	return r, nil
}

func (b *fragile) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := b.check(ctx, &req, b.broken != "a peek takes any cost"); err != nil {
		return backend.Result{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, st := b.at(req), b.state(req)
	r := backend.Result{Verdict: st.Peek(req.Policy, at, req.Cost), Now: at.Micros, Source: backend.Local}
	if b.broken == "peeks charge" {
		st.Take(req.Policy, at, 1)
	}
	if b.broken != "peeks where a key was are exact" {
		r.Lower(st.Moved(at))
	}
	return r, nil
}

func (b *fragile) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return b.update(ctx, req, func(s *state.State, at state.At) {
		switch b.broken {
		case "refunds do nothing":
			return
		case "receipts are trusted":
			if receipt.Cost > 0 {
				_ = receipt.Policy().Limits
			}
		case "refunds count twice":
			s.Refund(at, &receipt, amount)
		case "refunds give all":
			s.Reset(req.Policy, at)
		case "refunds ignore the amount":
			amount = receipt.Cost
		case "refunds may be negative":
			if amount < 0 {
				s.Take(req.Policy, at, 1)
			}
		}
		s.Refund(at, &receipt, amount)
	})
}

func (b *fragile) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	cost := req.Cost
	if b.broken != "any charge will do" && (cost < 1 || cost > limit.MaxCount) {
		return backend.Result{}, &limit.Error{Field: "cost", Value: "bad", Bound: "must be good"}
	}
	if err := b.check(ctx, &req, b.broken == "charges are checked like takes"); err != nil {
		return backend.Result{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, st := b.at(req), b.state(req)
	if b.broken != "charges ignore moves" {
		if err := b.enter(st, at, req, req.Floor, true); err != nil {
			return backend.Result{}, err
		}
	}
	if req.Floor != nil && b.broken != "charges ignore floors" {
		st.Join(req.Policy, at, req.Floor)
	}
	switch b.broken {
	case "marks are ignored":
		mark = state.Mark{}
	case "marks of windows that are over are now":
		for i := range req.Policy.Limits {
			if mark.At(i) <= at.Micros {
				mark = state.Mark{}
			}
		}
	}
	var v state.Verdict
	if denied := st.Peek(req.Policy, at, cost); b.broken == "charges need room" && !denied.Allowed {
		v = denied
	} else {
		v = st.Charge(req.Policy, at, mark, cost)
	}
	return backend.Result{Verdict: v, Now: at.Micros, Source: backend.Local, State: st.Clone()}, nil
}

func (b *fragile) Reset(ctx context.Context, req backend.Request) error {
	return b.update(ctx, req, func(s *state.State, at state.At) {
		switch b.broken {
		case "a reset deletes":
			*s = state.State{}
		case "a reset charges":
			s.Take(req.Policy, at, 1)
		case "a reset does nothing":
		default:
			s.Reset(req.Policy, at)
		}
	})
}

func (b *fragile) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if (extra < 1 || extra > limit.MaxCount) && b.broken != "any grant will do" {
		return req.CheckGrant(ctx, extra)
	}
	return b.update(ctx, req, func(s *state.State, at state.At) {
		switch b.broken {
		case "a grant resets":
			s.Reset(req.Policy, at)
		case "a grant counts twice":
			s.Grant(req.Policy, at, extra)
			s.Grant(req.Policy, at, extra)
		case "a grant does nothing":
		default:
			s.Grant(req.Policy, at, extra)
		}
	})
}

func (b *fragile) Seed(ctx context.Context, req backend.Request, st state.State) error {
	return b.change(ctx, req, &st, func(s *state.State, at state.At) {
		switch b.broken {
		case "a seed replaces":
			*s = st.Clone()
		case "a seed charges":
			s.Join(req.Policy, at, &st)
			s.Take(req.Policy, at, 1)
		case "a seed does nothing":
		default:
			s.Join(req.Policy, at, &st)
		}
	})
}

func (b *fragile) update(ctx context.Context, req backend.Request, change func(*state.State, state.At)) error {
	return b.change(ctx, req, nil, change)
}

func (b *fragile) change(ctx context.Context, req backend.Request, seed *state.State, change func(*state.State, state.At)) error {
	if err := b.check(ctx, &req, false); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != "seals hold takes only" {
		if err := b.enter(b.state(req), b.at(req), req, seed, seed == nil); err != nil {
			return err
		}
	}
	change(b.state(req), b.at(req))
	return nil
}

// enter lets a request in, with the stamps that its floor brings along.
func (b *fragile) enter(s *state.State, at state.At, req backend.Request, floor *state.State, charges bool) error {
	m := req.Move
	switch {
	case b.broken == "moves are ignored",
		b.broken == "seals hold versions only" && m.Version == 0:
		return nil
	case b.broken == "floors are not waited for" && m.Step == state.Ask:
		m.Step = state.WithoutFloor
	case b.broken == "whoever is alone adopts" && m.Step == state.WithoutFloor:
		m.Step = state.Adopt
	case b.broken == "all movers are one":
		m.Mover = state.Migration
	case b.broken == "seeds are takes":
		charges = true
	case b.broken == "takes are seeds":
		charges = false
	case b.broken == "stamps stay behind" && floor != nil:
		known := floor.Clone()
		known.Unfence(state.Migration)
		floor = &known
	case b.broken == "stamps always come along" && floor != nil && m.Step == state.Adopt:
		_, err := s.Enter(at, m)
		if err == nil {
			*s = state.Merge(*s, *floor, at)
		}
		return err
	}
	if m.Step != state.Adopt {
		_, err := s.Arrive(req.Policy, at, m, nil, charges)
		return err
	}
	stamps := state.State{} // the counts are for the caller to join
	if floor != nil && b.broken != "floors are ignored" {
		stamps = *floor
	}
	_, err := s.Arrive(req.Policy, at, m, &stamps, charges)
	return err
}

func (b *fragile) Published(ctx context.Context) (control.Announcement, error) {
	if err := b.callable(ctx); err != nil && b.broken != "Published needs no context" {
		return control.Announcement{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	there := b.announcement
	switch b.broken {
	case "Published finds nothing":
		return control.Announcement{}, nil
	case "Published doesn't read the text":
		there.Text = ""
	}
	return there, nil
}

// callable is the error of a call that can't be made.
func (b *fragile) callable(ctx context.Context) error {
	switch {
	case b.closed.Load():
		return backend.ErrClosed
	case ctx == nil:
		return &limit.Error{Field: "context", Value: "nil", Bound: "must be one"}
	}
	return ctx.Err()
}

func (b *fragile) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	if err := b.callable(ctx); err != nil {
		return control.Announcement{}, err
	}
	switch {
	case b.broken == "any announcement will do":
	case n.Version < 1 || n.Version > limit.MaxCount || n.Digest == "" || n.Text == "" || strings.ContainsAny(n.Digest, " \t\n\v\f\r"):
		return control.Announcement{}, &limit.Error{Field: "announcement", Value: "bad", Bound: "must be good"}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	newer := n.Version > b.announcement.Version
	switch b.broken {
	case "the last announcement stays":
		newer = true
	case "versions are words":
		newer = fmt.Sprint(n.Version) > fmt.Sprint(b.announcement.Version)
	case "of two announcements the last stays":
		newer = n.Version >= b.announcement.Version
	}
	if newer {
		b.announcement = n
	}
	there := b.announcement
	if there.Version <= n.Version && b.broken != "texts always come" || b.broken == "texts never come" {
		there.Text = ""
	}
	return there, nil
}

func (b *fragile) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := b.check(ctx, &req, false); err != nil {
		return backend.Snapshot{}, err
	}
	if req.Move.Version == 0 {
		return backend.Snapshot{}, &limit.Error{Field: "move", Value: "0", Bound: "must be a version"}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, st := b.at(req), b.state(req)
	if b.broken == "stamps are short" {
		req.Move.TTL /= 2
	}
	changed, err := st.Seal(at, req.Move)
	if err == nil && !changed && b.broken == "seals that were made are refused" {
		err = &state.MovedError{Version: req.Move.Version}
	}
	if err != nil {
		return backend.Snapshot{}, err
	}
	return backend.Snapshot{State: st.Clone(), Now: at.Micros, Source: backend.Local}, nil
}

func (b *fragile) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := b.check(ctx, &req, false); err != nil {
		return backend.Snapshot{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.state(req)
	snapshot := backend.Snapshot{State: st.Clone(), Now: b.at(req).Micros, Source: backend.Local}
	if b.broken == "a load is shared" {
		snapshot.State = *st
	}
	return snapshot, nil
}

func (b *fragile) Ping(ctx context.Context) error {
	if b.closed.Load() && b.broken != "a ping answers for ever" {
		return backend.ErrClosed
	}
	return ctx.Err()
}

func (b *fragile) NowMicros() int64 { return b.now().UnixMicro() }

func (b *fragile) Close() error {
	if b.closed.Swap(true) && b.broken == "closed once only" {
		return backend.ErrClosed
	}
	return nil
}

// breakages are what can be wrong with a backend, and a part of the suite that must see it.
var breakages = []struct{ broken, part string }{
	{"an interface is lost", "Interfaces"},
	{"windows end early", "Fixed"},
	{"windows end early", "Expiry"},
	{"windows end late", "Aligned"},
	{"windows end late", "Sliding"},
	{"whole seconds", "Bucket"},
	{"the wall clock decides", "Expiry"},
	{"another hash", "Staggered"},
	{"limits are charged one by one", "Policy"},
	{"only the first limit counts", "Policy"},
	{"costs are one", "Fixed"},
	{"costs are floats", "BigNumbers"},
	{"denials are charged", "Denied"},
	{"denials forget all", "Denied"},
	{"windows end late", "ClockBack"},
	{"a new policy starts afresh", "PolicyChange"},
	{"peeks charge", "Peek"},
	{"peeks where a key was are exact", "HandOver"},
	{"a peek takes any cost", "BadInput"},
	{"refunds do nothing", "Refund"},
	{"refunds count twice", "Refund"},
	{"refunds give all", "Refund"},
	{"refunds ignore the amount", "Refund"},
	{"refunds may be negative", "Refund"},
	{"receipts are trusted", "Refund"},
	{"refunds give all", "ConcurrentRefund"},
	{"charges need room", "Charge"},
	{"charges are checked like takes", "Charge"},
	{"charges ignore floors", "Charge"},
	{"any charge will do", "BadInput"},
	{"charges ignore moves", "HandOver"},
	{"marks are ignored", "ChargeMarks"},
	{"marks of windows that are over are now", "ChargeMarks"},
	{"marks are ignored", "History"},
	{"a reset deletes", "Reset"},
	{"a reset does nothing", "Reset"},
	{"a reset charges", "Reset"},
	{"a load is shared", "Load"},
	{"a seed replaces", "Seed"},
	{"a seed charges", "Seed"},
	{"a seed does nothing", "Seed"},
	{"floors are ignored", "Floor"},
	{"moves are ignored", "HandOver"},
	{"seals hold takes only", "HandOver"},
	{"seals hold versions only", "HandOver"},
	{"seals that were made are refused", "HandOver"},
	{"floors are not waited for", "HandOver"},
	{"whoever is alone adopts", "HandOver"},
	{"stamps are short", "HandOver"},
	{"floors are ignored", "HandOver"},
	{"all movers are one", "TwoMovers"},
	{"seeds are takes", "TwoMovers"},
	{"takes are seeds", "TwoMovers"},
	{"stamps stay behind", "TwoMovers"},
	{"stamps always come along", "TwoMovers"},
	{"moves are ignored", "TwoMovers"},
	{"any mover will do", "BadInput"},
	{"any announcement will do", "Publish"},
	{"the last announcement stays", "Publish"},
	{"versions are words", "Publish"},
	{"of two announcements the last stays", "Publish"},
	{"of two announcements the last stays", "PublishAtOnce"},
	{"texts always come", "Publish"},
	{"texts never come", "Publish"},
	{"Published finds nothing", "Publish"},
	{"Published doesn't read the text", "Publish"},
	{"Published needs no context", "Publish"},
	{"a floor replaces", "Floor"},
	{"denials forget the floor", "Floor"},
	{"the floor is kept", "Floor"},
	{"a floor replaces", "FloorKept"},
	{"a state of no use", "Fixed"},
	{"without source", "Fixed"},
	{"not exact", "Fixed"},
	{"no cause", "Fixed"},
	{"cost 0 is free", "BadInput"},
	{"negative costs give back", "BadInput"},
	{"too large is denied", "BadInput"},
	{"errors are plain", "BadInput"},
	{"errors name the key", "BadInput"},
	{"no key will do", "BadInput"},
	{"no context will do", "BadInput"},
	{"contexts are ignored", "Context"},
	{"contexts end in silence", "Context"},
	{"key and policy run together", "Keys"},
	{"policies share keys", "Keys"},
	{"keys are cut", "Keys"},
	{"keys end at NUL", "Keys"},
	{"keys are trimmed", "Keys"},
	{"keys are lower case", "Keys"},
	{"keys are normalized", "Keys"},
	{"keys are valid UTF-8", "Keys"},
	{"keys are escaped by halves", "Keys"},
	{"a hash tag is the key", "Keys"},
	{"updates get lost", "Concurrent"},
	{"works when closed", "Closed"},
	{"a ping answers for ever", "Closed"},
	{"closed once only", "Closed"},
	{"closed once only", "CloseAtWork"},
	{"limits are charged one by one", "History"},
	{"denials forget the floor", "History"},
	{"refunds count twice", "History"},
	{"a reset deletes", "History"},
	{"a grant resets", "Grant"},
	{"a grant counts twice", "Grant"},
	{"a grant does nothing", "Grant"},
	{"a grant does nothing", "History"},
	{"any grant will do", "BadInput"},
	{"a new policy starts afresh", "History"},
	{"windows end early", "History"},
	{"policies share keys", "History"},
}

const brokenEnv = "SLUICE_BACKENDTEST_BROKEN"

// TestFragile runs the suite on a backend that nothing is wrong with; as a child of TestCatches, on a broken one.
func TestFragile(t *testing.T) {
	broken := os.Getenv(brokenEnv)
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		b := newFragile(now, broken)
		if broken == "an interface is lost" {
			return struct {
				backend.Backend
				backend.Peeker
			}{b, b}
		}
		return b
	}, all...)
}

// TestCatches breaks a backend in one way after another and wants the suite to see each.
func TestCatches(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.part+"/"+b.broken, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestFragile$/^"+b.part+"$", "-rapid.nofailfile", "-rapid.seed=7", "-rapid.shrinktime=0s")
			cmd.Env = append(os.Environ(), brokenEnv+"="+b.broken)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: TestFragile/"+b.part) {
				t.Errorf("the suite doesn't see it: %v\n%s", err, out)
			}
		})
	}
}

// TestOptions: what an option allows passes with it and fails without.
func TestOptions(t *testing.T) {
	const option = "SLUICE_BACKENDTEST_OPTION"
	cases := map[string]struct {
		open   func(now func() time.Time) backend.Backend
		option backendtest.Option
	}{
		"Weakest":   {func(now func() time.Time) backend.Backend { return newFragile(now, "not exact") }, backendtest.Weakest(backend.Bounded)},
		"Withholds": {func(now func() time.Time) backend.Backend { return takeOnly{miser{newFragile(now, "")}} }, backendtest.Withholds(1)},
		"Contends":  {func(now func() time.Time) backend.Backend { return takeOnly{&contended{fragile: newFragile(now, "")}} }, backendtest.Contends()},
		"Lags": {func(now func() time.Time) backend.Backend {
			b := newFragile(now, "")
			return &laggard{takeOnly: takeOnly{b}, primary: b}
		}, backendtest.Lags()},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			open := func(_ *testing.T, now func() time.Time) backend.Backend { return c.open(now) }
			if os.Getenv(option) == name {
				backendtest.Run(t, open)
				return
			}
			backendtest.Run(t, open, c.option)
			cmd := exec.Command(os.Args[0], "-test.run=^TestOptions$/^"+name+"$", "-rapid.nofailfile", "-rapid.shrinktime=0s")
			cmd.Env = append(os.Environ(), option+"="+name)
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("passes without the option:\n%s", out)
			}
		})
	}
}

// takeOnly hides the optional interfaces.
type takeOnly struct{ backend.Backend }

// miser never gives the last one away: somebody may have charged it in advance.
type miser struct{ *fragile }

func (m miser) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if m.check(ctx, &req, true) != nil {
		return m.fragile.Take(ctx, req)
	}
	if req.Floor != nil {
		if err := m.Seed(ctx, req, *req.Floor); err != nil {
			return backend.Result{}, err
		}
	}
	r, err := m.Peek(ctx, req)
	if err != nil {
		return r, err
	}
	left := limit.MaxCount
	for s := range r.All() {
		left = min(left, s.Remaining)
	}
	if left != req.Cost {
		return m.fragile.Take(ctx, req)
	}
	snapshot, err := m.Load(ctx, req)
	at := m.at(req)
	snapshot.State.Take(req.Policy, at, left)
	r.Verdict = snapshot.State.Peek(req.Policy, at, req.Cost)
	return r, err
}

// contended fails every other take.
type contended struct {
	*fragile
	n atomic.Int64
}

func (c *contended) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if c.check(ctx, &req, true) == nil && c.n.Add(1)%2 == 0 {
		return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Contended, Err: errors.New("too many writers")}
	}
	return c.fragile.Take(ctx, req)
}

// laggard answers every other peek from an empty copy.
type laggard struct {
	takeOnly
	primary *fragile
	n       atomic.Int64
}

func (l *laggard) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if r, err := l.primary.Peek(ctx, req); err != nil || l.n.Add(1)%2 == 0 {
		return r, err
	}
	return newFragile(l.primary.now, "").Peek(ctx, req)
}
