//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// The scripts and package limit/state are two programs for one thing. Here they run the same random histories, the scripts
// on a real server and through Redis, and must give the same verdicts and leave the same states behind.

var (
	differentialSeed = flag.Uint64("differential.seed", 20260101, "seed of the random histories")
	differentialOnly = flag.Uint64("differential.only", 0, "run this history only, counted from 1")
	differentialRuns = flag.Uint64("differential.histories", 0, "how many histories; 0: 24000 in the long tier, 1000 otherwise")
)

func TestDifferential(t *testing.T) { differ(t, drawHistory, 1) }

// differ runs histories, one of share of those that were asked for.
func differ(t *testing.T, draw func(seed, n uint64) *history, share uint64) {
	server := testserver.Redis(t)
	first, last := uint64(1), *differentialRuns
	switch {
	case *differentialOnly > 0:
		first, last = *differentialOnly, *differentialOnly
	case last == 0:
		last = uint64(testtier.Size(1000, 24_000))
	}
	if *differentialOnly == 0 {
		last /= share
	}
	var next, steps, allowed, denied, learned atomic.Uint64
	var mu sync.Mutex // guards met
	met := make(map[string]uint64)
	next.Store(first - 1)
	var wg sync.WaitGroup
	for range 8 {
		arena := newArena(t, server, nil)
		wg.Go(func() {
			for n := next.Add(1); n <= last && !t.Failed(); n = next.Add(1) {
				h := draw(*differentialSeed, n)
				arena.thorough = n%8 == 0
				run := arena.fight(h)
				steps.Add(run.steps)
				allowed.Add(run.allowed)
				denied.Add(run.denied)
				learned.Add(run.learned)
				mu.Lock()
				for what, n := range run.met {
					met[what] += n
				}
				mu.Unlock()
				if run.err != nil {
					t.Errorf("-run='^%s$' -differential.seed=%d -differential.only=%d\n%s", t.Name(), *differentialSeed, n, arena.report(h))
				}
			}
		})
	}
	wg.Wait()
	t.Logf("seed %d: %d histories, %d steps, %d takes admitted, %d denied, %d floors told news",
		*differentialSeed, last-first+1, steps.Load(), allowed.Load(), denied.Load(), learned.Load())
	if *differentialOnly == 0 && (allowed.Load() < last || denied.Load() < last || learned.Load() < last/8*4/share) {
		t.Error("too few of a kind: the histories test too little")
	}
	for _, what := range encounters {
		if *differentialOnly == 0 && last >= 6000 && share == 1 && met[what] == 0 {
			t.Errorf("never happened: %s", what)
		}
		if testing.Verbose() {
			t.Logf("%6d %s", met[what], what)
		}
	}
}

// An arena is where histories run: one Redis backend on a clock of its own.
type arena struct {
	redis    *redisbackend.Redis
	client   *redis.Client // past the backend, and past what spoils its scripts
	through  *redis.Client // the backend's own
	clock    *backendtesting.Clock
	prefix   string
	thorough bool // also look at what is stored, and for how long, after every step
}

// newArena spoils the scripts with hook, if there is one.
func newArena(t testing.TB, server *testserver.Server, hook redis.Hook) *arena {
	t.Helper()
	a := &arena{client: server.Client(), clock: backendtesting.NewClock(), prefix: backendtesting.NewPrefix()}
	options := *a.client.Options()
	options.MaxRetries = -1 // of an opened client it reads 0, which is a default
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	if hook != nil {
		client.AddHook(hook)
	}
	b, err := redisbackend.New(client, redisbackend.Config{Now: a.clock.Now, Prefix: a.prefix, Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	a.redis, a.through = b, client
	return a
}

// outcome is how a history went.
type outcome struct {
	err   error // the first difference
	trace []string

	steps, allowed, denied, learned uint64
	met                             map[string]uint64 // how often each of encounters was met
}

// fight runs a history, and again if the two differ: on a machine that stood still for a second the server may have
// expired the key. What is a difference of the programs comes back.
func (a *arena) fight(h *history) outcome {
	run := a.run(h)
	for range 2 {
		if run.err != nil {
			run = a.run(h)
		}
	}
	return run
}

// report runs ever shorter versions of a history that end in a difference, and describes the shortest.
func (a *arena) report(h *history) string {
	a.thorough = true
	shortest := *h
	for again, tries := true, 0; again; {
		again = false
		for i := len(shortest.ops) - 1; i >= 0 && tries < 500; i-- {
			tries++
			shorter := shortest
			shorter.ops = slices.Delete(slices.Clone(shortest.ops), i, i+1)
			if run := a.run(&shorter); run.err != nil {
				shortest, again = shorter, true
			}
		}
	}
	run := a.run(&shortest)
	if run.err == nil {
		run = a.run(h)
	}
	return fmt.Sprintf("%s\n%v", strings.Join(run.trace, "\n"), run.err)
}

// contest is a run of a history.
type contest struct {
	*arena
	outcome
	h        *history
	at       state.At
	policy   *limit.Policy
	move     state.Move
	model    state.State
	copies   [2]state.State // go on by themselves, as other holders of a floor do
	known    []state.State
	seen     []string // of any key, as text
	receipts []state.Receipt
	last     state.Verdict
}

func (a *arena) run(h *history) outcome {
	c := &contest{arena: a, h: h, at: state.At{Micros: h.start, Phase: keyhash.Sum(h.key)}}
	c.met = make(map[string]uint64)
	c.lose()
	if h.worn {
		c.copies = [2]state.State{c.worn(h.policies[0], 3), c.worn(h.policies[len(h.policies)-1], 40)}
	}
	for i := range h.ops {
		op := &h.ops[i]
		c.policy, c.move = h.policies[op.policy], op.move
		before := c.at.Micros
		c.tick(op)
		a.clock.SetMicros(c.at.Micros)
		c.steps++
		c.trace = append(c.trace, "")
		if c.at.Micros < before {
			c.err = c.recall()
		}
		if c.err == nil {
			c.err = c.step(op)
		}
		mark := &c.trace[len(c.trace)-1]
		*mark = fmt.Sprintf("%+d us, under %v %v: %s", c.at.Micros-h.start, c.policy.Limits, c.move, *mark)
		if c.err != nil {
			break
		}
	}
	return c.outcome
}

func (c *contest) note(format string, args ...any) {
	c.trace[len(c.trace)-1] += fmt.Sprintf(format, args...)
}

func (c *contest) stored() string { return c.prefix + "p:" + c.h.key }

func (c *contest) lose() {
	c.client.Del(context.Background(), c.stored(), c.stored()+"~", c.stored()+"~~")
	c.model = state.State{}
}

// recall takes what is stored for the truth. Once the clock steps back, what was over may be alive again, and who
// remembers it is not agreed upon: whenever a script stores something, it leaves out what is over.
func (c *contest) recall() error {
	text, err := c.client.Get(context.Background(), c.stored()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	c.model, err = state.ParseState(text)
	return err
}

// tick lets time pass: not at all, a little, to about where a limit changes its mind, far, or back.
func (c *contest) tick(op *operation) {
	l := &c.policy.Limits[op.pause2%uint64(len(c.policy.Limits))]
	r := int64(op.pause2 >> 8)
	switch op.pause % 16 {
	case 0, 1, 2, 3:
		return
	case 4, 5:
		c.at.Micros += r % 3000
	case 6, 7:
		c.at.Micros += r % (l.Window.Microseconds()*5/4 + 1)
	case 8:
		c.at.Micros += r % (l.Precision.Microseconds() + l.Window.Microseconds()/8 + 1)
	case 9, 10, 11, 12:
		moments := ends(c.model.String())
		for s := range c.last.All() {
			moments = append(moments, s.ResetAt.UnixMicro(), c.at.Micros+s.RetryAfter.Microseconds())
		}
		if len(moments) > 0 {
			c.at.Micros = max(c.at.Micros, moments[r%int64(len(moments))]+(r>>8)%3-1)
		}
	case 13:
		c.at.Micros -= r % (l.Window.Microseconds() + 1)
	case 14:
		moments := ends(c.model.String())
		if len(moments) > 0 {
			c.at.Micros = min(c.at.Micros, moments[r%int64(len(moments))]-l.Window.Microseconds()+(r>>8)%3-1)
		}
	case 15:
		c.at.Micros -= r % 3000
	}
	c.at.Micros = min(max(c.at.Micros, 0), horizon)
}

// ends is when each entry of an encoded state is over, in Unix microseconds: its first number.
func ends(st string) []int64 {
	var all []int64
	for entry := range strings.SplitSeq(strings.TrimSuffix(st, ";"), ";") {
		id, body, _ := strings.Cut(entry, ":")
		body, _, _ = strings.Cut(body, ",")
		whole, fraction, _ := strings.Cut(body, ".")
		end, err := strconv.ParseInt(whole, 10, 64)
		switch {
		case err != nil:
			continue
		case id[0] != 'b':
			end *= 1000
		case fraction != "":
			end++
		}
		all = append(all, end)
	}
	return all
}

func (c *contest) cost(op *operation) int64 {
	quota := limit.MaxCount
	for i := range c.policy.Limits {
		quota = min(quota, c.policy.Limits[i].Quota())
	}
	cost := int64(1)
	switch op.cost % 8 {
	case 0, 1:
	case 2:
		cost = 1 + int64(op.cost2%5)
	case 3:
		cost = quota
	case 4:
		cost = quota / 2
	case 5, 6:
		cost = c.last.Binding().Remaining + int64(op.cost2%3) - 1
	case 7:
		cost = 1 + int64(op.cost2%uint64(quota))
	}
	return min(max(cost, 1), quota)
}

// floor is what a caller may know: an earlier state, a copy that went on by itself, or what is stored now.
func (c *contest) floor(op *operation) *state.State {
	var s state.State
	switch n := op.pick % 8; {
	case n < 2:
		s = c.copies[n].Clone()
	case n < 6:
		s = c.copies[n%2].Clone()
		if op.pick2%3 == 0 {
			s = c.model.Clone()
		}
		at := c.at
		at.Micros -= min(at.Micros, int64(op.pick>>8)%50_000)
		s.Take(c.policy, at, c.cost(op))
		if op.pick2%2 == 0 {
			c.copies[n%2] = s.Clone()
		}
	case len(c.known) > 0:
		s = c.known[op.pick2%uint64(len(c.known))].Clone()
	default:
		s = c.model.Clone()
	}
	for _, m := range op.past {
		if m.Step == state.Adopt {
			_, _ = s.Arrive(c.policy, c.at, m, nil, false)
		} else {
			_, _ = s.Seal(c.at, m)
		}
	}
	return &s
}

func (c *contest) request(cost int64, floor *state.State) backend.Request {
	return backend.Request{Key: c.h.key, Policy: c.policy, Cost: cost, Floor: floor, Move: c.move}
}

func (c *contest) step(op *operation) error {
	ctx := context.Background()
	switch op.kind {
	case "take":
		return c.take(c.cost(op), nil)
	case "floor":
		return c.take(c.cost(op), c.floor(op))
	case "charge":
		return c.charge(op, nil)
	case "charge floor":
		return c.charge(op, c.floor(op))
	case "together":
		return c.together(op)
	case "peek":
		cost := c.cost(op)
		c.note("peek %d", cost)
		got, err := c.redis.Peek(ctx, c.request(cost, nil))
		if err != nil {
			return err
		}
		looked := c.model.Clone()
		want := looked.Peek(c.policy, c.at, cost)
		return c.compareVerdicts(&got.Verdict, &want)
	case "seed":
		floor := c.floor(op)
		c.note("seed %s", floor.String())
		return c.lasting(func() error {
			err := c.redis.Seed(ctx, c.request(0, nil), *floor)
			c.meet("seed", floor)
			news, refusal := c.model.Arrive(c.policy, c.at, c.move, floor, false)
			if err != nil || refusal != nil {
				return c.compareRefusals(err, refusal)
			}
			if news {
				c.learned++
			}
			return nil
		}, true)
	case "refund":
		r := c.receipt(op)
		if r == nil {
			return nil
		}
		amount := c.amount(op, r)
		c.note("refund %d of %s", amount, sayReceipt(r))
		return c.lasting(func() error {
			c.asks()
			return c.enter(c.redis.Refund(ctx, c.request(0, nil), *r, amount), func() { c.model.Refund(c.at, r, amount) })
		}, false)
	case "reset":
		c.note("reset")
		return c.lasting(func() error {
			c.asks()
			return c.enter(c.redis.Reset(ctx, c.request(0, nil)), func() { c.model.Reset(c.policy, c.at) })
		}, false)
	case "grant":
		extra := c.extra(op)
		c.note("grant %d", extra)
		return c.lasting(func() error {
			c.asks()
			return c.enter(c.redis.Grant(ctx, c.request(0, nil), extra), func() { c.model.Grant(c.policy, c.at, extra) })
		}, false)
	case "seal":
		c.note("seal")
		return c.lasting(func() error {
			began := time.Now()
			snapshot, err := c.redis.Seal(ctx, c.request(0, nil))
			c.meet("seal", nil)
			changed, refusal := c.model.Seal(c.at, c.move)
			if err != nil || refusal != nil {
				return c.compareRefusals(err, refusal)
			}
			err = c.compareStates("the reply", snapshot.State)
			if changed && err == nil {
				err = c.checkExpiry(began, true)
			}
			return err
		}, true)
	case "load":
		c.note("load")
		return c.compareStored()
	case "copy":
		s := &c.copies[op.pick%2]
		if op.pick2%4 == 0 {
			*s = c.model.Clone()
		}
		cost := c.cost(op)
		at := c.at
		at.Micros += int64(op.pick2>>8) % 1000
		if v := s.Take(c.policy, at, cost); v.Allowed {
			c.receipts = append(c.receipts, v.Receipt())
		}
		c.note("copy %d takes %d: %s", op.pick%2, cost, s.String())
	case "copy refund":
		s := &c.copies[op.pick%2]
		r := c.receipt(op)
		if r == nil {
			return nil
		}
		amount := c.amount(op, r)
		s.Refund(c.at, r, amount)
		c.note("copy %d refunds %d of %s: %s", op.pick%2, amount, sayReceipt(r), s.String())
	case "copy reset":
		s := &c.copies[op.pick%2]
		if op.pick2%2 == 0 {
			*s = c.model.Clone()
		}
		s.Reset(c.policy, c.at)
		c.note("copy %d is reset: %s", op.pick%2, s.String())
	case "copy grant":
		s := &c.copies[op.pick%2]
		s.Grant(c.policy, c.at, c.extra(op))
		c.note("copy %d is granted %d: %s", op.pick%2, c.extra(op), s.String())
	case "lose":
		c.note("the server loses the key")
		if c.lose(); op.pick%2 == 0 { // what a seal of nothing leaves behind
			return c.client.Set(ctx, c.stored(), "", 0).Err()
		}
	case "spoil":
		if op.pick2%8 == 0 {
			return c.spoilType()
		}
		return c.spoil(garbage[op.pick%uint64(len(garbage))])
	default:
		panic(op.kind)
	}
	return nil
}

// extra is what is granted: up to a few times what fits.
func (c *contest) extra(op *operation) int64 {
	switch op.pick2 % 8 {
	case 0:
		return limit.MaxCount
	case 1:
		return 1
	}
	return min(1+int64(op.cost2>>12)%(3*c.cost(op)), limit.MaxCount)
}

// asks makes the move one of a refund or a reset, which have no floor to adopt with.
func (c *contest) asks() {
	if c.move.Step == state.Adopt {
		c.move.Step = state.Ask
	}
}

// enter makes the change to the model that was made at the server, unless both refuse it.
func (c *contest) enter(err error, change func()) error {
	c.meet("give back", nil)
	_, refusal := c.model.Enter(c.at, c.move)
	if err != nil || refusal != nil {
		return c.compareRefusals(err, refusal)
	}
	change()
	return nil
}

func (c *contest) compareRefusals(err, refusal error) error {
	if c.note(" -> %v", refusal); !reflect.DeepEqual(err, refusal) {
		return fmt.Errorf("the script refuses with %v\npackage limit/state with      %v", err, refusal)
	}
	return nil
}

// receipt is one of the latest, or any.
func (c *contest) receipt(op *operation) *state.Receipt {
	n := uint64(len(c.receipts))
	if n == 0 {
		return nil
	}
	back := op.pick2 % n
	if op.pick2>>32%3 > 0 {
		back = op.pick2 % min(n, 2)
	}
	return &c.receipts[n-1-back]
}

func (c *contest) amount(op *operation, r *state.Receipt) int64 {
	switch op.cost % 5 {
	case 0, 1:
		return r.Cost
	case 2:
		return 1
	case 3:
		return r.Cost + 3
	}
	return 1 + int64(op.cost2%uint64(r.Cost))
}

func sayReceipt(r *state.Receipt) string {
	text := fmt.Sprintf("receipt for %d under %v", r.Cost, r.Policy().Limits)
	for i := range r.Policy().Limits {
		end, position, fraction := r.Charge(i)
		text += fmt.Sprintf(" %d.%d until %d", position, fraction, end)
	}
	return text
}

func (c *contest) take(cost int64, floor *state.State) error {
	c.note("take %d of %s", cost, c.model.String())
	ctx := context.Background()
	began := time.Now()
	was, kept := "", time.Duration(0)
	if c.thorough {
		was, kept = c.client.Get(ctx, c.stored()).Val(), c.client.PExpireTime(ctx, c.stored()).Val()
	}
	if floor != nil {
		c.note(", floor %s", floor.String())
	}
	got, err := c.redis.Take(ctx, c.request(cost, floor))
	c.meet("take", floor)
	news, refusal := c.model.Arrive(c.policy, c.at, c.move, floor, true)
	if err != nil || refusal != nil {
		if now := c.client.Get(ctx, c.stored()).Val(); c.thorough && now != was {
			return fmt.Errorf("a refused take changed what is stored from %q to %q", was, now)
		}
		return c.compareRefusals(err, refusal)
	}
	if news {
		c.learned++
	}
	want := c.model.Take(c.policy, c.at, cost)
	c.last = want
	c.note(" -> %s", backendtesting.Say(&want))
	if want.Allowed {
		c.allowed++
		c.receipts = append(c.receipts, want.Receipt())
	} else {
		c.denied++
	}
	c.known = append(c.known, c.model.Clone())
	if err := c.compareVerdicts(&got.Verdict, &want); err != nil {
		return err
	}
	if err := c.compareStates("the reply", got.State); err != nil {
		return err
	}
	if !c.thorough {
		return nil
	}
	if err := c.compareStored(); err != nil {
		return err
	}
	if !want.Allowed && !news {
		if now := c.client.Get(ctx, c.stored()).Val(); now != was {
			return fmt.Errorf("a denied take changed what is stored from %q to %q", was, now)
		}
		if now := c.client.PExpireTime(ctx, c.stored()).Val(); now != kept {
			return fmt.Errorf("a denied take moved the expiry from %s to %s", kept, now)
		}
		return nil
	}
	told := ""
	if floor != nil && floor.Until() > c.at.Micros {
		told = floor.String()
	}
	script := new(scripts.Plans).Find(c.policy.Limits).ScriptFor(c.at.Micros, 1, &scripts.KeyTake{Cost: cost, Floor: told})
	keeps := script != &scripts.Take && script != &scripts.TakeBucket
	if c.move.Version == 0 && keeps && c.ours(was, told) && c.goesOn(was) {
		return c.keepsExpiry(c.stored(), kept)
	}
	return c.checkExpiry(began, want.Allowed)
}

// checkExpiry looks when the server will delete the key: a second after the last entry is over, counted from when the
// state was stored. A denied take that stored what a floor knew may keep it longer.
func (c *contest) checkExpiry(began time.Time, exact bool) error {
	expires, err := c.client.PExpireTime(context.Background(), c.stored()).Result()
	if err != nil {
		return err
	}
	st := settled(c.model, c.at)
	life := time.Duration((max(st.Until()-c.at.Micros, 0)+999)/1000)*time.Millisecond + time.Second
	if life > 20*limit.MaxWindow {
		return nil // only with numbers that have run out; the moment is more than expires can hold
	}
	at := time.UnixMilli(expires.Milliseconds())
	if at.Before(began.Add(life-2*time.Millisecond)) || exact && at.After(time.Now().Add(life+2*time.Millisecond)) {
		return fmt.Errorf("the key expires in %s, want %s", at.Sub(began), life)
	}
	return nil
}

// lasting makes a change that a take didn't make, which must not touch the key's expiry unless extends.
func (c *contest) lasting(change func() error, extends bool) error {
	ctx := context.Background()
	var before time.Duration
	if c.thorough {
		before = c.client.PExpireTime(ctx, c.stored()).Val()
	}
	if err := change(); err != nil {
		return err
	}
	if c.thorough && !extends {
		if after := c.client.PExpireTime(ctx, c.stored()).Val(); after != before {
			return fmt.Errorf("the expiry moved from %s to %s", before, after)
		}
	}
	c.note(" -> %s", c.model.String())
	return c.compareStored()
}

func (c *contest) compareVerdicts(got, want *state.Verdict) error {
	if backendtesting.Say(got) != backendtesting.Say(want) || got.Binding() != want.Binding() {
		return fmt.Errorf("the script says %s, binding %s\npackage limit/state  %s, binding %s",
			backendtesting.Say(got), got.Binding().Limit, backendtesting.Say(want), want.Binding().Limit)
	}
	return nil
}

func (c *contest) compareStored() error {
	snapshot, err := c.redis.Load(context.Background(), c.request(0, nil))
	if err != nil {
		return err
	}
	return c.compareStates("the server", snapshot.State)
}

func (c *contest) compareStates(who string, got state.State) error {
	mine, want := settled(got, c.at), settled(c.model, c.at)
	if !mine.Equal(&want) {
		return fmt.Errorf("%s has  %s\npackage limit/state %s", who, got.String(), want.String())
	}
	return nil
}

// settled is a state without what is over.
func settled(s state.State, at state.At) state.State { return state.Merge(s, state.State{}, at) }
