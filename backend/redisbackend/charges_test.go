//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// TestChargesShareCalls: concurrent charges share script calls, of at most 128 keys, and what is wrong with one key is the
// outcome of that key alone.
func TestChargesShareCalls(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	client := server.Client()
	p := &limit.Policy{Name: "p", Limits: []limit.Limit{
		limit.Fixed(1000, time.Hour), limit.Fixed(1000, 30*24*time.Hour).Staggered(), limit.Sliding(1000, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 1000),
	}}
	const keys = 1000
	request := func(i int, cost int64) backend.Request {
		return backend.Request{Key: fmt.Sprint("key", i), Policy: p, Cost: cost, Trace: &backend.Trace{}}
	}
	sealed := request(1, 0)
	sealed.Move = state.Move{Version: 5, TTL: time.Hour}
	if _, err := b.Seal(t.Context(), sealed); err != nil {
		t.Fatal(err)
	}
	do(t, client, "SET", backendtesting.Stored("key2"), "garbage")
	do(t, client, "HSET", backendtesting.Stored("key3"), "field", "value")
	do(t, client, "SET", backendtesting.Stored("key4"), "f1h:9000000000000,-;") // as far as its form shows, a state
	server.ResetStats(t)
	var most, takes atomic.Int64
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			req := request(i, int64(i+1))
			result, err := b.Charge(context.Background(), req, state.Mark{})
			switch i {
			case 1:
				if moved, ok := errors.AsType[*state.MovedError](err); !ok || moved.Version != 5 {
					t.Errorf("of a key that has moved: %v", err)
				}
			case 2, 4:
				if failed, ok := errors.AsType[*backend.Error](err); !ok || failed.Kind != backend.Corrupt || failed.MayHaveCharged {
					t.Errorf("of garbage: %v", err)
				}
			case 3:
				if failed, ok := errors.AsType[*backend.Error](err); !ok || failed.Kind != backend.Misconfigured || failed.MayHaveCharged {
					t.Errorf("of a hash: %v", err)
				}
			default:
				if err != nil || !result.Allowed || result.Receipt().Cost != int64(i+1) || result.Binding().Remaining != 1000-int64(i+1) {
					t.Errorf("key %d: %s, %v", i, backendtesting.Say(&result.Verdict), err)
				}
			}
			if err == nil && len(req.Trace.Calls) != 1 {
				t.Errorf("traced %+v", req.Trace.Calls)
			}
			for _, call := range req.Trace.Calls {
				if most.Store(max(most.Load(), int64(call.Shared))); call.Op != "charge" || call.Script != "charge" || call.Shared > 128 {
					t.Errorf("traced %+v", call)
				}
			}
		})
		if i%100 == 0 {
			all.Go(func() { // takes pass between
				if _, err := b.Take(context.Background(), request(keys+i, 1)); err == nil {
					takes.Add(1)
				}
			})
		}
	}
	all.Wait()
	calls := server.Stats(t)["evalsha"]
	if t.Logf("%d charges in %d calls, at most %d together", keys, calls, most.Load()); calls > keys/4 || most.Load() < 8 || takes.Load() != 10 {
		t.Errorf("%d charges made %d calls, at most %d shared one; %d takes passed", keys, calls, most.Load(), takes.Load())
	}
	for i := range keys {
		if i >= 1 && i <= 4 {
			continue
		}
		v, err := b.Peek(t.Context(), request(i, 1))
		if err != nil {
			t.Fatal(err)
		}
		for s := range v.All() {
			if s.Remaining != max(1000-int64(i+1), 0) {
				t.Fatalf("key %d: %d left of %s", i, s.Remaining, s.Limit)
			}
		}
	}
}

// TestChargesWithoutRoom: more charges than there is room for wait for their turn and leave room for takes; those who wait too long
// have charged nothing.
func TestChargesWithoutRoom(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Queue: 300, Timeout: 2 * time.Second})
	backendtesting.Warm(t, b, backendtesting.Hourly)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	var unsent, unknown atomic.Int64
	for i := range 1000 {
		all.Go(func() {
			_, err := b.Charge(ctx, backendtesting.Request(fmt.Sprint("k", i)), state.Mark{})
			failed, ok := errors.AsType[*backend.Error](err)
			switch {
			case err == context.DeadlineExceeded: // the time of all was over before this one began
				unsent.Add(1)
			case !ok:
				t.Errorf("charge: %v", err)
			case failed.MayHaveCharged:
				unknown.Add(1)
			default:
				unsent.Add(1)
			}
		})
	}
	time.Sleep(100 * time.Millisecond) // all charges are where they can get
	if _, err := b.Take(ctx, backendtesting.Request("k")); errors.Is(err, backend.ErrOverloaded) {
		t.Errorf("charges fill the queue: %v", err)
	}
	all.Wait()
	if unknown.Load() > 256*2 || unsent.Load() < 400 {
		t.Errorf("%d may have been charged, %d were not sent", unknown.Load(), unsent.Load())
	}
}

// TestChargeOfSeveralKeys holds the script to package limit/state for several keys in one call.
func TestChargeOfSeveralKeys(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	client, ctx := server.Client(), t.Context()
	for n := range uint64(300) {
		h := drawHistory(11, n+1)
		r := rand.New(rand.NewPCG(n, 5))
		p := h.policies[0]
		micros := min(h.start, horizon/2) + 1_000_000
		var keys []scripts.KeyTake
		var marks []state.Mark
		states := make(map[string]*state.State)
		for range 1 + r.IntN(6) {
			key := fmt.Sprintf("k%d-%d", n, r.IntN(5)) // one may come twice
			at := state.At{Micros: micros - r.Int64N(3_000_000), Phase: keyhash.Sum(key)}
			at.Micros = max(at.Micros, 0)
			if states[key] == nil {
				s := &state.State{}
				for range r.IntN(4) {
					s.Take(p, at, 1)
				}
				if states[key] = s; !s.Empty() {
					do(t, client, "SET", key, s.String(), "EX", "100")
				}
			}
			var floor string
			if r.IntN(3) == 0 {
				var f state.State
				f.Take(p, at, 1)
				f.Charge(p, at, state.Mark{}, 2)
				floor = f.String()
			}
			mark := state.Mark{}
			if r.IntN(3) > 0 {
				mark, _ = state.MarkAt(p, at)
			}
			keys = append(keys, scripts.KeyTake{Key: key, Cost: 1 + r.Int64N(40), Floor: floor, Phase: at.Phase})
			marks = append(marks, mark)
		}
		args := new(scripts.Plans).Find(p.Limits).AppendCharges([]any{"eval", scripts.Charge.Source, len(keys)}, micros, len(keys),
			func(i int) (*scripts.KeyTake, *state.Mark) { return &keys[i], &marks[i] })
		for i, arg := range args {
			if text, ok := arg.(*string); ok {
				args[i] = *text
			}
		}
		reply, err := client.Do(ctx, args...).Text()
		if err != nil {
			t.Fatal(err)
		}
		replies, err := scripts.ParseCharges(reply, len(keys))
		if err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			text, failed := replies.Next()
			charged, got, err := scripts.ParseTake(text)
			if err != nil || failed != "" || !charged {
				t.Fatalf("key %d of %d: %q, %v, %s", i, len(keys), text, err, failed)
			}
			now := state.At{Micros: micros, Phase: keys[i].Phase}
			want := states[keys[i].Key]
			floor, err := state.ParseState(keys[i].Floor)
			if err != nil {
				t.Fatal(err)
			}
			want.Join(p, now, &floor)
			want.Charge(p, now, marks[i], keys[i].Cost)
			mine, theirs := settled(got, now), settled(*want, now)
			if !mine.Equal(&theirs) {
				t.Fatalf("history %d, key %d under %v: %s, want %s", n, i, p.Limits, mine.String(), theirs.String())
			}
		}
	}
}
