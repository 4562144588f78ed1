//go:build unix

package scripts_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// TestTakeOneCounts: TakeOne, which compares and counts up text, does what package limit/state does wherever the number of digits
// changes.
func TestTakeOneCounts(t *testing.T) {
	t.Parallel()
	client := testserver.Redis(t).Client()
	const now = 1_767_225_600_000_000
	counts := []int64{1, 8, 9, 10, 19, 98, 99, 100, 199, 999, 123_456_789_012_349, 99_999_999_999_999, 1e15 - 1, limit.MaxCount - 2, limit.MaxCount - 1, limit.MaxCount}
	for _, used := range counts {
		for _, most := range counts {
			for _, refunded := range []int64{0, 1, 10} {
				for _, elapsed := range []int64{0, 3_599_999, 3_600_000} {
					if refunded > used {
						continue
					}
					policy := &limit.Policy{Limits: []limit.Limit{limit.Fixed(most, time.Hour)}}
					stored := fmt.Sprintf("f1h:%d,%d;", now/1000+3_600_000, used)
					if refunded > 0 {
						stored = fmt.Sprintf("f1h:%d,%d-%d;", now/1000+3_600_000, used, refunded)
					}
					at := state.At{Micros: now + elapsed*1000}
					plan := new(scripts.Plans).Find(policy.Limits)
					one := &scripts.KeyTake{Key: "k", Cost: 1}
					script := plan.ScriptFor(at.Micros, 1, one)
					if script != &scripts.TakeOne {
						t.Fatalf("a single take goes to %s", script.Name)
					}
					client.Set(t.Context(), "k", stored, time.Hour)
					var args scripts.Args
					plan.AppendArgs(&args, script, at.Micros, 1, func(int) *scripts.KeyTake { return one })
					reply, err := client.Eval(t.Context(), script.Source, []string{"k"}, args.List[1:]...).Text()
					if err != nil {
						t.Fatal(err)
					}
					charged, got, err := scripts.ParseTake(reply)
					want, _ := state.ParseState(stored)
					verdict := want.Take(policy, at, 1)
					if left := client.Get(t.Context(), "k").Val(); err != nil || charged != verdict.Allowed || got.String() != left {
						t.Errorf("%s of %d, %d ms later: %q, %v, stored is %q", stored, most, elapsed, reply, err, left)
					} else if charged && !got.Equal(&want) {
						t.Errorf("%s of %d, %d ms later: %s, want %s", stored, most, elapsed, got.String(), want.String())
					}
				}
			}
		}
	}
}

// TestTakeOneLeaves: what isn't the state of one fixed limit is left to take, unchanged.
func TestTakeOneLeaves(t *testing.T) {
	t.Parallel()
	client := testserver.Redis(t).Client()
	const now = 1_767_225_600_000_000
	at := fmt.Sprint(now/1000 + 1000)
	one := &scripts.KeyTake{Key: "k", Cost: 1}
	plan := new(scripts.Plans).Find([]limit.Limit{limit.PerHour(100)})
	var args scripts.Args
	plan.AppendArgs(&args, &scripts.TakeOne, now, 1, func(int) *scripts.KeyTake { return one })
	for _, stored := range []string{
		"f1h:" + at + ",5;f1m:" + at + ",2;", "f1h:" + at + ",5-1;f1m:" + at + ",2;", "f1m:" + at + ",5;", "f1h:" + at + ",5-1-1-1;",
		"f1h:" + at + "0,5;", "f1h:" + at + ",5", "f1h:" + at + ",-5;", "garbage", strings.Repeat("f1h:"+at+",5;", 20),
	} {
		client.Set(t.Context(), "k", stored, time.Hour)
		reply, err := client.Eval(t.Context(), scripts.TakeOne.Source, []string{"k"}, args.List[1:]...).Text()
		if left := client.Get(t.Context(), "k").Val(); err != nil || reply != "" || left != stored {
			t.Errorf("%q: %q, %v, and leaves %q", stored, reply, err, left)
		}
	}
}

// TestSingleTakes: a single take without a floor under one limit is one call of a script of its own, whatever takes and refunds
// have left. It does what package limit/state does.
func TestSingleTakes(t *testing.T) {
	t.Parallel()
	client := testserver.Redis(t).Client()
	for want, limits := range map[*scripts.Script][]limit.Limit{
		&scripts.TakeOne: {
			limit.Fixed(4, 10*time.Second), limit.Fixed(4, 10*time.Second).Aligned(), limit.Fixed(4, 10*time.Second).Staggered(),
			limit.Sliding(4, 10*time.Second, time.Second), limit.Sliding(3, 2*time.Second, time.Second), limit.Sliding(9, time.Minute, time.Second),
		},
		&scripts.TakeBucket: {
			limit.TokenBucket(1, time.Second, 4), limit.TokenBucket(7, 10*time.Second, 4), limit.TokenBucket(999_983, 1_000_000*time.Second, 3),
		},
	} {
		for i, l := range limits {
			policy := &limit.Policy{Limits: limits[i : i+1]}
			plan := new(scripts.Plans).Find(policy.Limits)
			take := &scripts.KeyTake{Key: "k", Cost: 1, Phase: 12345}
			at := state.At{Micros: 1_767_225_600_000_000, Phase: take.Phase}
			var known state.State
			random, denied := rand.New(rand.NewPCG(1, uint64(i))), 0
			client.Del(t.Context(), "k")
			for n := range 400 {
				at.Micros += random.Int64N(1_800_000)
				if n%97 == 96 {
					at.Micros += 100_000_000
				}
				if want == &scripts.TakeBucket {
					take.Cost = 1 + random.Int64N(2)
				}
				script := plan.ScriptFor(at.Micros, 1, take)
				if script != want {
					t.Fatalf("%s: a single take goes to %s", &l, script.Name)
				}
				var args scripts.Args
				plan.AppendArgs(&args, script, at.Micros, 1, func(int) *scripts.KeyTake { return take })
				reply, err := client.Eval(t.Context(), script.Source, []string{"k"}, args.List[1:]...).Text()
				if err != nil || reply == "" {
					t.Fatalf("%s: %s is left to take: %v", &l, known.String(), err)
				}
				before := known.String()
				verdict := known.Take(policy, at, take.Cost)
				charged, got, err := scripts.ParseTake(reply)
				if err != nil || charged != verdict.Allowed || charged && got.String() != known.String() {
					t.Fatalf("%s at %d of %s: %q, %v; want %s", &l, at.Micros, before, reply, err, known.String())
				}
				if !charged {
					denied++
				} else if random.IntN(4) == 0 {
					receipt := verdict.Receipt()
					known.Refund(at, &receipt, 1)
					client.Set(t.Context(), "k", known.String(), time.Hour)
				}
			}
			if denied < 20 || denied > 380 {
				t.Errorf("%s: %d of 400 were denied", &l, denied)
			}
		}
	}
}
