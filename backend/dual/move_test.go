//go:build unix

package dual_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestDualStories: what every handover costs, and where its counts are afterwards. Version v is 2(v+1) on the old side
// and one more on the new one.
func TestDualStories(t *testing.T) {
	type step struct {
		who     int // of two processes
		version uint64
		useNew  bool
		want    string // the calls
		left    int64
	}
	toOld := func(v int) string {
		return fmt.Sprintf("old take %d ask, new seal %d, old take %d adopt", v, v, v)
	}
	toNew := func(v int) string {
		return fmt.Sprintf("new take %d ask, old seal %d, new take %d adopt", v, v, v)
	}
	begin := step{0, 0, false, toOld(2), 9}
	for name, story := range map[string]struct {
		steps     []step
		byHand    func(*stage) error // after the first step
		handovers [2]int64
		redirects [2]int64
	}{
		"forth": {steps: []step{
			begin, {0, 0, false, "old take 2 ask", 8},
			{0, 1, true, toNew(5), 7}, {0, 1, true, "new take 5 ask", 6},
		}, handovers: [2]int64{2, 0}},
		"forth and back": {steps: []step{
			begin, {0, 1, true, toNew(5), 8}, {0, 2, false, toOld(6), 7}, {0, 2, false, "old take 6 ask", 6},
			{0, 3, true, toNew(9), 5},
		}, handovers: [2]int64{4, 0}},
		"stays": {steps: []step{
			begin, {0, 1, false, toOld(4), 8}, {0, 1, false, "old take 4 ask", 7},
		}, handovers: [2]int64{2, 0}},
		"a process behind follows": {steps: []step{
			begin, {1, 1, true, toNew(5), 8},
			{0, 0, false, "old take 2 ask, new take 5 ask", 7},
			{0, 0, false, "old take 2 ask, new take 5 ask", 6},
			{0, 1, true, "new take 5 ask", 5},
		}, handovers: [2]int64{1, 1}, redirects: [2]int64{2, 0}},
		"a process ahead brings the key back": {steps: []step{
			begin, {0, 1, true, toNew(5), 8},
			{1, 2, false, toOld(6), 7},
			{0, 1, true, "new take 5 ask, old take 6 ask", 6},
			{1, 2, false, "old take 6 ask", 5},
		}, handovers: [2]int64{2, 1}, redirects: [2]int64{1, 0}},
		"a crash after the seal, found behind": {steps: []step{
			begin,
			{0, 0, false, "old take 2 ask, new take 5 ask, old seal 5, new take 5 adopt", 8},
			{1, 1, true, "new take 5 ask", 7},
		}, byHand: sealOld(5), handovers: [2]int64{2, 0}, redirects: [2]int64{1, 0}},
		"a crash after the seal, found by its equal": {steps: []step{
			begin, {1, 1, true, toNew(5), 8}, {1, 1, true, "new take 5 ask", 7},
		}, byHand: sealOld(5), handovers: [2]int64{1, 1}},
		"a crash after the seal, found ahead": {steps: []step{
			begin, {1, 2, false, toOld(6), 8}, {1, 2, false, "old take 6 ask", 7},
			{0, 0, false, "old take 2 ask", 6}, // the seal is lifted
		}, byHand: sealOld(5), handovers: [2]int64{1, 1}},
		"the seal finds that the key has come": {steps: []step{
			begin,
			{1, 1, true, "new take 5 ask, old seal 5, old take 6 ask", 8},
		}, byHand: func(s *stage) error { // the new side has forgotten its own seal
			req := takeTen("k")
			req.Move = state.Move{Version: 6, Step: state.Adopt, TTL: time.Hour}
			return s.old.Memory.Seed(context.Background(), req, state.State{})
		}, handovers: [2]int64{1, 0}, redirects: [2]int64{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			var flags [2]lever
			processes := [2]*dual.Dual{s.process(t, &flags[0], dual.Config{}), s.process(t, &flags[1], dual.Config{})}
			decided := [2]int64{}
			for i, step := range story.steps {
				flags[step.who].set(step.version, step.useNew)
				r, err := processes[step.who].Take(context.Background(), takeTen("k"))
				if got := s.read(); got != step.want {
					t.Errorf("step %d: %s; want %s", i, got, step.want)
				}
				if err != nil || !r.Allowed || r.Binding().Remaining != step.left || r.Guarantee != backend.Exact || r.Cause != nil {
					t.Errorf("step %d: allowed %t, %d left, %s, %v, %v; want %d left", i, r.Allowed, r.Binding().Remaining, r.Guarantee, r.Cause, err, step.left)
				}
				decided[step.who]++
				if i == 0 && story.byHand != nil {
					if err := story.byHand(s); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i, d := range processes {
				stats := d.Stats()
				if stats.Handovers != story.handovers[i] || stats.Redirects != story.redirects[i] || stats.Bounded != 0 || stats.Old+stats.New != decided[i] {
					t.Errorf("process %d counts %+v, want %d handovers, %d redirects, %d decisions", i, stats, story.handovers[i], story.redirects[i], decided[i])
				}
			}
		})
	}
}

// sealOld is a process that ends after the first step of a handover.
func sealOld(version int64) func(*stage) error {
	return func(s *stage) error {
		req := takeTen("k")
		req.Move = state.Move{Version: version, TTL: 2 * time.Hour}
		_, err := backend.Sealer(s.old.Memory).Seal(context.Background(), req)
		return err
	}
}

// TestDualEqualVersions: processes that number different answers alike never both charge, and none is left standing.
func TestDualEqualVersions(t *testing.T) {
	for _, version := range []uint64{0, 1, 7} {
		s := newStage(t)
		var flags [2]lever
		flags[0].set(version, false)
		flags[1].set(version, true)
		processes := [2]*dual.Dual{s.process(t, &flags[0], dual.Config{}), s.process(t, &flags[1], dual.Config{})}
		var admitted [2]int
		for i := range 30 {
			if backendtesting.MustTake(t, processes[i%2], takeTen("k")).Allowed {
				admitted[i%2]++
			}
		}
		if admitted != [2]int{5, 5} {
			t.Errorf("in turn, version %d: %d admitted, want 5 by each", version, admitted)
		}
		var all [2]atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := range 100 {
					r, err := processes[i%2].Take(context.Background(), takeTen(fmt.Sprint("at once ", n%10)))
					if err != nil {
						t.Errorf("at once: %v", err)
						return
					}
					if r.Allowed {
						all[i%2].Add(1)
					}
				}
			})
		}
		wg.Wait()
		if sum := all[0].Load() + all[1].Load(); sum != 100 {
			t.Errorf("at once, version %d: %d + %d admitted, want 100", version, all[0].Load(), all[1].Load())
		}
	}
}

// TestDualPeriod: counts are carried over for the longest window and Settle, from the start and from each change on.
func TestDualPeriod(t *testing.T) {
	for _, settle := range []time.Duration{0, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s, l := newStage(t), &lever{}
			d := s.process(t, l, dual.Config{Settle: settle})
			hold := time.Hour + settle
			if settle == 0 {
				hold = time.Hour + 10*time.Minute // the default
			}
			expect := func(key, want string) {
				t.Helper()
				backendtesting.MustTake(t, d, takeTen(key))
				if got := s.read(); got != want {
					t.Errorf("%s: %s; want %s", key, got, want)
				}
			}
			pass := func(d time.Duration) { time.Sleep(d); s.clock.Step(d) }
			expect("k", "old take 2 ask, new seal 2, old take 2 adopt")
			pass(hold - time.Millisecond)
			expect("at the end", "old take 2 ask, new seal 2, old take 2 adopt")
			pass(time.Millisecond)
			expect("k", "old take")
			expect("after it", "old take")
			if err := d.Reset(context.Background(), takeTen("k")); err != nil || s.read() != "old reset" {
				t.Errorf("reset: %v", err)
			}

			l.set(1, true)
			expect("k", "new take 5 ask, old seal 5, new take 5 adopt")
			pass(hold)
			expect("k", "new take")

			// Another process is ahead. Who meets its seal knows that there was a change, and is careful with all keys.
			req := takeTen("k")
			req.Move = state.Move{Version: 6, TTL: hold}
			if _, err := s.new.Memory.Seal(context.Background(), req); err != nil {
				t.Fatal(err)
			}
			if r, err := d.Peek(context.Background(), takeTen("k")); err != nil || r.Binding().Remaining != 9 || s.read() != "new load, old load" {
				t.Errorf("a look at a key that is sealed here: %d left, %v", r.Binding().Remaining, err)
			}
			expect("k", "new take, old take 6 ask, new seal 6, old take 6 adopt")
			expect("another", "new take 5 ask, old seal 5, new take 5 adopt")
			pass(hold)
			expect("one more", "new take")
		})
	}
}

// TestDualChangesFollow: refunds, resets and seeds reach the key where it is; the counts are those of one state.
func TestDualChangesFollow(t *testing.T) {
	type deed struct {
		who  int // 0 still has the key on the old side, 1 has it on the new one
		do   string
		n    int64
		take int // the take that is refunded
	}
	for name, deeds := range map[string][]deed{
		"refund before the first take":     {{0, "take", 3, 0}, {1, "refund", 2, 0}, {1, "take", 1, 0}},
		"refund after the first take":      {{0, "take", 3, 0}, {1, "take", 1, 0}, {1, "refund", 2, 0}, {1, "take", 8, 0}},
		"refund meets the seal":            {{0, "take", 3, 0}, {1, "take", 1, 0}, {0, "refund", 3, 0}, {0, "refund", 1, 1}},
		"refund meets a crash":             {{0, "take", 3, 0}, {0, "seal", 5, 0}, {0, "refund", 2, 0}, {1, "take", 1, 0}},
		"refund of more than there was":    {{0, "take", 3, 0}, {1, "refund", 100, 0}, {1, "take", 10, 0}},
		"refund after a reset":             {{0, "take", 3, 0}, {1, "reset", 0, 0}, {1, "refund", 3, 0}, {1, "take", 2, 0}, {0, "refund", 3, 0}},
		"charge before the first take":     {{0, "take", 3, 0}, {1, "charge", 2, 0}, {1, "take", 6, 0}},
		"charge after the first take":      {{0, "take", 3, 0}, {1, "take", 1, 0}, {1, "charge", 9, 1}, {1, "take", 1, 0}},
		"charge of what the old side took": {{0, "take", 3, 0}, {1, "take", 1, 0}, {1, "charge", 4, 0}, {1, "take", 3, 0}},
		"charge meets the seal":            {{0, "take", 3, 0}, {1, "take", 1, 0}, {0, "charge", 5, 0}, {0, "take", 2, 0}},
		"charge meets a crash":             {{0, "take", 3, 0}, {0, "seal", 5, 0}, {0, "charge", 20, 0}, {1, "take", 1, 0}},
		"reset before the first take":      {{0, "take", 10, 0}, {1, "reset", 0, 0}, {1, "take", 10, 0}},
		"reset after the first take":       {{0, "take", 4, 0}, {1, "take", 4, 0}, {1, "reset", 0, 0}, {0, "take", 9, 0}},
		"reset meets the seal":             {{0, "take", 4, 0}, {1, "take", 4, 0}, {0, "reset", 0, 0}, {1, "take", 3, 0}},
		"seed before the first take":       {{0, "take", 2, 0}, {1, "seed", 7, 0}, {1, "take", 1, 0}, {1, "take", 1, 0}},
		"seed of less than was counted":    {{0, "take", 7, 0}, {1, "seed", 2, 0}, {1, "take", 1, 0}},
		"seed after the first take":        {{0, "take", 2, 0}, {1, "take", 1, 0}, {1, "seed", 7, 0}, {0, "take", 1, 0}},
		"seed meets the seal":              {{0, "take", 2, 0}, {1, "take", 1, 0}, {0, "seed", 7, 0}, {1, "take", 1, 0}},
		"all of it by a process that is behind": {{0, "take", 2, 0}, {1, "take", 2, 0}, {0, "take", 2, 0}, {0, "refund", 2, 1}, {1, "refund", 2, 2},
			{0, "refund", 2, 0}, {0, "take", 10, 0}, {0, "reset", 0, 0}, {1, "take", 1, 0}},
	} {
		for _, l := range []limit.Limit{limit.Fixed(10, time.Hour), limit.Sliding(10, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 10)} {
			t.Run(name+"/"+l.String(), func(t *testing.T) {
				s := newStage(t)
				var flags [2]lever
				flags[1].set(1, true)
				processes := [2]*dual.Dual{s.process(t, &flags[0], dual.Config{}), s.process(t, &flags[1], dual.Config{})}
				policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
				req := backend.Request{Key: "k", Policy: policy, Cost: 1}
				var model state.State
				var receipts, modelReceipts []state.Receipt
				ctx := context.Background()
				for i, deed := range deeds {
					s.clock.Step(100 * time.Millisecond)
					at := state.At{Micros: s.clock.Now().UnixMicro()}
					d := processes[deed.who]
					var err error
					switch deed.do {
					case "take":
						req := req
						req.Cost = deed.n
						var r backend.Result
						r, err = d.Take(ctx, req)
						v := model.Take(policy, at, deed.n)
						if r.Allowed != v.Allowed || r.Binding() != v.Binding() {
							t.Fatalf("deed %d: %t, %+v; want %t, %+v", i, r.Allowed, r.Binding(), v.Allowed, v.Binding())
						}
						receipts, modelReceipts = append(receipts, r.Receipt()), append(modelReceipts, v.Receipt())
					case "refund":
						err = d.Refund(ctx, req, receipts[deed.take], deed.n)
						model.Refund(at, &modelReceipts[deed.take], deed.n)
					case "charge":
						req := req
						req.Cost = deed.n
						_, err = d.Charge(ctx, req, receipts[deed.take].Mark())
						model.Charge(policy, at, modelReceipts[deed.take].Mark(), deed.n)
					case "reset":
						err = d.Reset(ctx, req)
						model.Reset(policy, at)
					case "seed":
						var known state.State // of a place that has charged more or less
						known.Take(policy, at, deed.n)
						err = d.Seed(ctx, req, known)
						model.Join(policy, at, &known)
					case "seal":
						err = sealOld(deed.n)(s)
					}
					if err != nil {
						t.Fatalf("deed %d: %v", i, err)
					}
					want := model.Peek(policy, at, 1)
					for who, d := range processes {
						got, err := d.Peek(ctx, req)
						if err != nil || got.Allowed != want.Allowed || got.Binding() != want.Binding() {
							t.Fatalf("deed %d, seen by %d: %t, %+v, %v; want %t, %+v", i, who, got.Allowed, got.Binding(), err, want.Allowed, want.Binding())
						}
					}
				}
			})
		}
	}
}

// TestDualChangesCost: a change brings what was not handed over, once.
func TestDualChangesCost(t *testing.T) {
	ctx := context.Background()
	for op, change := range map[string]func(*dual.Dual, state.Receipt) error{
		"refund": func(d *dual.Dual, r state.Receipt) error { return d.Refund(ctx, takeTen("k"), r, 1) },
		"reset":  func(d *dual.Dual, _ state.Receipt) error { return d.Reset(ctx, takeTen("k")) },
		"seed":   func(d *dual.Dual, _ state.Receipt) error { return d.Seed(ctx, takeTen("k"), state.State{}) },
	} {
		s, l := newStage(t), &lever{}
		d := s.process(t, l, dual.Config{})
		r := backendtesting.MustTake(t, d, takeTen("k"))
		l.set(1, true)
		s.read()
		for _, want := range []string{"new %s 5 ask, old seal 5, new seed 5 adopt, new %[1]s 5 ask", "new %s 5 ask"} {
			if err := change(d, r.Receipt()); err != nil {
				t.Errorf("%s: %v", op, err)
			}
			if got := s.read(); got != fmt.Sprintf(want, op) {
				t.Errorf("%s: %s; want %s", op, got, fmt.Sprintf(want, op))
			}
		}
		if n := d.Stats().Handovers; n != 2 {
			t.Errorf("%s: %d handovers, want 2", op, n)
		}
	}
}

// TestDualChargeCost: a charge carries what was not handed over, as a take does.
func TestDualChargeCost(t *testing.T) {
	s, l, ctx := newStage(t), &lever{}, context.Background()
	d := s.process(t, l, dual.Config{})
	r := backendtesting.MustTake(t, d, takeTen("k"))
	l.set(1, true)
	s.read()
	for _, want := range []string{"new charge 5 ask, old seal 5, new charge 5 adopt", "new charge 5 ask"} {
		if result, err := d.Charge(ctx, takeTen("k"), ptr(r.Receipt()).Mark()); err != nil || result.Guarantee != backend.Exact {
			t.Errorf("%s, %v", result.Guarantee, err)
		}
		if got := s.read(); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	s, l = newStage(t), &lever{}
	d = s.process(t, l, dual.Config{})
	backendtesting.MustTake(t, d, takeTen("k"))
	l.set(1, true)
	s.old.set(gone)
	s.read()
	result, err := d.Charge(ctx, takeTen("k"), state.Mark{})
	if err != nil || !errors.Is(result.Cause, backend.ErrNotHandedOver) || result.Guarantee != backend.Bounded {
		t.Errorf("without the old side: %s because of %v, %v", result.Guarantee, result.Cause, err)
	}
	if got, want := s.read(), "new charge 5 ask, old seal 5, new charge 5 alone"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	bare := backendtesting.NewDual(t, dual.Config{
		Old: backendtesting.OnlyTakes{Backend: backendtesting.NewMemory(t, memory.Config{})}, New: backendtesting.NewMemory(t, memory.Config{}),
		Decide: backendtesting.Constant(false),
	})
	if _, err := bare.Charge(ctx, takeTen("k"), state.Mark{}); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("of a side that can't: %v", err)
	}
}

func ptr[T any](v T) *T { return &v }

// TestDualLooks: a look changes nothing, and sees both sides until the key has been handed over.
func TestDualLooks(t *testing.T) {
	s, l := newStage(t), &lever{}
	d := s.process(t, l, dual.Config{})
	ctx := context.Background()
	for range 4 {
		backendtesting.MustTake(t, d, takeTen("k"))
	}
	l.set(1, true)
	s.read()
	look := func(when, calls string, allowed bool, left int64, bounded bool) {
		t.Helper()
		r, err := d.Peek(ctx, takeTen("k"))
		if err != nil || r.Allowed != allowed || r.Binding().Remaining != left {
			t.Errorf("%s, peek: %t, %d left, %v; want %t, %d", when, r.Allowed, r.Binding().Remaining, err, allowed, left)
		}
		if (r.Guarantee == backend.Bounded) != bounded || errors.Is(r.Cause, backend.ErrNotHandedOver) != bounded || (r.Cause != nil) != bounded {
			t.Errorf("%s, peek: %s because of %v, want bounded: %t", when, r.Guarantee, r.Cause, bounded)
		}
		if got := s.read(); got != calls {
			t.Errorf("%s, peek: %s; want %s", when, got, calls)
		}
		snapshot, err := d.Load(ctx, takeTen("k"))
		if err != nil {
			t.Fatalf("%s, load: %v", when, err)
		}
		at := state.At{Micros: snapshot.Now}
		if v := snapshot.State.Peek(ten, at, 1); v.Allowed != allowed || v.Binding().Remaining != left {
			t.Errorf("%s, load: %t, %d left; want %t, %d", when, v.Allowed, v.Binding().Remaining, allowed, left)
		}
		if adopted, sealed := snapshot.State.Fence(state.Migration, at); adopted != 0 || sealed != 0 {
			t.Errorf("%s, load: the state still has the place's fence %d, %d", when, adopted, sealed)
		}
		if got := s.read(); got != calls {
			t.Errorf("%s, load: %s; want %s", when, got, calls)
		}
	}
	const both = "new load 5, old load 5"
	look("before", both, true, 6, false)
	s.old.set(gone)
	look("out of reach", both, true, 10, true)
	for range 10 { // decided without the old side
		backendtesting.MustTake(t, d, takeTen("k"))
	}
	s.read()
	look("out of reach and full", both, false, 0, true)
	s.old.set(nil)
	if err := d.Reset(ctx, takeTen("k")); err != nil {
		t.Fatal(err)
	}
	backendtesting.MustTake(t, d, takeTen("k"))
	s.read()
	s.old.set(gone)
	look("handed over, whatever became of the old side", "new load 5", true, 9, false)

	l.set(2, false) // an own side that is gone is no verdict
	_, peekErr := d.Peek(ctx, takeTen("k"))
	_, loadErr := d.Load(ctx, takeTen("k"))
	backendtesting.WantError(t, peekErr, backend.Unavailable, false)
	backendtesting.WantError(t, loadErr, backend.Unavailable, false)
	if got := s.read(); got != "old load 6, old load 6" {
		t.Errorf("the other side was looked at instead: %s", got)
	}
}

// TestDualDoubts: how the other side's failures come out; and what is not known stays uncounted in Handovers.
func TestDualDoubts(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		bounded bool
	}{
		"unavailable":   {&backend.Error{Op: "seal", Node: "n", Kind: backend.Unavailable, Err: errors.New("x")}, true},
		"misconfigured": {&backend.Error{Op: "seal", Node: "n", Kind: backend.Misconfigured, Err: errors.New("x")}, true},
		"corrupt":       {&backend.Error{Op: "seal", Node: "n", Kind: backend.Corrupt, Err: errors.New("x")}, true},
		"interrupted":   {&backend.Error{Op: "seal", Node: "n", Kind: backend.Interrupted, Err: context.DeadlineExceeded}, true},
		"contended":     {&backend.Error{Op: "seal", Node: "n", Kind: backend.Contended, Err: errors.New("x")}, false},
		"bad input":     {&limit.Error{Field: "f"}, false},
		"closed":        {backend.ErrClosed, false},
	} {
		s, l := newStage(t), &lever{}
		l.set(1, true)
		d := s.process(t, l, dual.Config{})
		s.old.set(func(context.Context, string, *backend.Request) error { return c.err })
		r, err := d.Take(context.Background(), takeTen("k"))
		switch {
		case c.bounded && (err != nil || !r.Allowed || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) || !errors.Is(r.Cause, c.err)):
			t.Errorf("%s: %v, %s because of %v", name, err, r.Guarantee, r.Cause)
		case !c.bounded && (err != c.err || r.Allowed):
			t.Errorf("%s: %v, allowed %t; want it back", name, err, r.Allowed)
		}
		want := "new take 5 ask, old seal 5"
		if c.bounded {
			want += ", new take 5 alone"
		}
		if got := s.read(); got != want {
			t.Errorf("%s: %s; want %s", name, got, want)
		}
		if stats := d.Stats(); stats.Handovers != 0 || stats.Bounded != stats.New || (stats.New == 1) != c.bounded {
			t.Errorf("%s: %+v", name, stats)
		}
		if !c.bounded {
			continue
		}
		for op, err := range map[string]error{
			"refund": d.Refund(context.Background(), takeTen("k"), r.Receipt(), 1),
			"reset":  d.Reset(context.Background(), takeTen("k")),
			"seed":   d.Seed(context.Background(), takeTen("k"), state.State{}),
		} {
			wantLost(t, op, err)
		}
	}
	s, l := newStage(t), &lever{}
	l.set(1, true)
	d := s.process(t, l, dual.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	s.old.set(func(context.Context, string, *backend.Request) error { cancel(); return gone(ctx, "seal", nil) })
	if r, err := d.Take(ctx, takeTen("k")); err == nil || r.Allowed {
		t.Errorf("a caller who has gone meanwhile: allowed %t, %v", r.Allowed, err)
	}
	if got := s.read(); got != "new take 5 ask, old seal 5" {
		t.Errorf("a caller who has gone meanwhile: %s", got)
	}
}

// wantLost checks the error of a change that was made where it could be: what it is about may be on the other side.
func wantLost(t testing.TB, op string, err error) {
	t.Helper()
	var failed *backend.Error
	if !errors.As(err, &failed) || failed.Op != "move" || failed.Kind != backend.Unavailable || !failed.MayHaveCharged || !errors.Is(err, backend.ErrNotHandedOver) {
		t.Errorf("%s out of reach: %v, want it not handed over", op, err)
	} else if strings.Contains(err.Error(), backendtesting.Secret) {
		t.Errorf("%s: the error names the key: %v", op, err)
	}
}

// TestDualFloor: a floor is joined with all that is known, not with what the previous side held first, which may lack refunds.
func TestDualFloor(t *testing.T) {
	s := newStage(t)
	var flag lever
	d := s.process(t, &flag, dual.Config{})
	now := time.Now() // read once: copies of one window have the same end
	parse := func(end time.Duration, counts string) state.State {
		st, err := state.ParseState(fmt.Sprintf("f1h:%d,%s;", now.Add(end).UnixMilli(), counts))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	req := takeTen("k")
	for place, st := range map[backend.Seeder]state.State{
		s.old.Memory: parse(30*time.Minute, "6-3"),
		s.new.Memory: parse(30*time.Minute, "6"), // from before the refund
	} {
		if err := place.Seed(t.Context(), req, st); err != nil {
			t.Fatal(err)
		}
	}
	later := parse(50*time.Minute, "5-1-1") // of a window that was opened where the other was not known
	req.Floor = &later
	r, err := d.Take(t.Context(), req)
	if err != nil || !r.Allowed || r.Binding().Remaining != 5 {
		t.Errorf("allowed %t, %d left, %v; want 5", r.Allowed, r.Binding().Remaining, err)
	}
	if got, want := s.read(), "old take 2 ask, new seal 2, old seed 2 adopt, old take 2 ask"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
