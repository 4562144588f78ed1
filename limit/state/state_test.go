package state_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// drawCopy draws some state of a key under p: what a history of its own left behind, or any text that is a state.
func drawCopy(t *rapid.T, p *limit.Policy) state.State {
	if rapid.Bool().Draw(t, "any text") {
		return drawState(t)
	}
	w := &world{policy: p, now: at(time.Duration(rapid.Int64Range(0, 3000).Draw(t, "start")) * time.Millisecond)}
	w.live(t, "tick take take take refund reset", func(string) {})
	return w.state
}

// drawState draws the text of a state, with few distinct identities and ends so that copies meet.
func drawState(t *rapid.T) state.State {
	ids := rapid.SliceOfDistinct(rapid.SampledFrom([]string{
		"f1s", "a1s", "g7ms", "s3s~1s", "s120ms~1ms", "s1s~1s", "b1s", "b1us", state.Migration.FenceID(), state.Topology.FenceID(),
	}), rapid.ID).Draw(t, "ids")
	var b strings.Builder
	for _, id := range ids {
		end := rapid.OneOf(rapid.Int64Range(1, 9), rapid.SampledFrom([]int64{500, limit.MaxCount / 1_000_000})).Draw(t, "end") * 1000
		switch id[0] {
		case 's':
			_, precision, _ := strings.Cut(id, "~")
			window, _ := time.ParseDuration(id[1 : len(id)-len(precision)-1])
			width, _ := time.ParseDuration(precision)
			n, used, subs := rapid.IntRange(1, int(window/width)).Draw(t, "sub-buckets"), int64(0), ""
			for i := range n {
				least := int64(0)
				if i > 0 && i == n-1 {
					least = 1
				}
				text, left := drawCount(t, least)
				subs, used = subs+","+text, used+left
			}
			fmt.Fprintf(&b, "%s:%d,%d%s;", id, end, used, subs)
		case 'b':
			part := func(whole, least int64) {
				fmt.Fprintf(&b, "%d", whole)
				if n := rapid.Int64Range(least, 5).Draw(t, "fraction"); n > 0 {
					fmt.Fprintf(&b, ".%d", n)
				}
			}
			fmt.Fprintf(&b, "%s:", id)
			part(end, 0)
			born := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, end-2)).Draw(t, "born")
			fmt.Fprintf(&b, ",%d,%d", end-born, end-rapid.Int64Range(born, end-1).Draw(t, "seen"))
			if credit := rapid.Int64Range(0, min(end-1, 1<<51)).Draw(t, "credit"); credit > 0 {
				b.WriteByte(',')
				part(end+rapid.Int64Range(1, 9).Draw(t, "later"), 0)
				b.WriteByte(',')
				part(credit, 0)
			}
			b.WriteByte(';')
		case 'm', 't':
			adopted, sealed := rapid.Int64Range(0, 5).Draw(t, "adopted"), rapid.Int64Range(1, 5).Draw(t, "sealed")
			fmt.Fprintf(&b, "%s:%d,%d,%d;", id, end, adopted, sealed)
		default:
			text, _ := drawCount(t, 0)
			fmt.Fprintf(&b, "%s:%d,%s;", id, end, text)
		}
	}
	s, err := state.ParseState(b.String())
	if err != nil {
		t.Fatalf("%s: %v", b.String(), err)
	}
	return s
}

func drawCount(t *rapid.T, least int64) (text string, left int64) {
	charged := rapid.Int64Range(least, 1<<46).Draw(t, "charged")
	refunded := rapid.Int64Range(0, charged).Draw(t, "refunded")
	if text = strconv.FormatInt(charged, 10); refunded > 0 {
		text += "-" + strconv.FormatInt(refunded, 10)
		if void := rapid.Int64Range(0, refunded).Draw(t, "void"); void > 0 {
			text += "-" + strconv.FormatInt(void, 10)
		}
	}
	return text, charged - refunded
}

// TestMergeIsASemilattice: copies may be joined in any order, any number of times.
func TestMergeIsASemilattice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t, 3)
		a, b, c := drawCopy(t, p), drawCopy(t, p), drawCopy(t, p)
		merge := func(x, y state.State) state.State { return state.Merge(x, y, state.At{}) } // nothing is over
		was := a.String() + b.String() + c.String()
		same := func(law string, x, y state.State) {
			if !x.Equal(&y) || !y.Equal(&x) || x.Until() != y.Until() {
				t.Fatalf("not %s:\na %s\nb %s\nc %s\n  %s\n  %s", law, a.String(), b.String(), c.String(), x.String(), y.String())
			}
		}
		ab := merge(a, b)
		same("commutative", ab, merge(b, a))
		if !lostTwice(was) {
			same("associative", merge(ab, c), merge(a, merge(b, c)))
		}
		same("idempotent", merge(a, a), a)
		same("an upper bound", merge(ab, a), ab)
		same("an upper bound", merge(b, ab), ab)
		same("neutral to nothing", merge(a, state.State{}), a)
		same("neutral to nothing", merge(state.State{}, a), a)
		decoded, err := state.ParseState(ab.String())
		if err != nil {
			t.Fatalf("merged %s and %s into %s: %v", a.String(), b.String(), ab.String(), err)
		}
		same("encodable", decoded, ab)
		if ab.Until() < max(a.Until(), b.Until()) {
			t.Fatalf("%s is over before %s or %s", ab.String(), a.String(), b.String())
		}

		// No memory is shared: what happens to the result does not happen to a and b.
		w := &world{policy: p, now: at(time.Second), state: ab}
		w.live(t, "take take refund reset", func(string) {})
		if got := a.String() + b.String() + c.String(); got != was {
			t.Fatalf("the merged copies changed from %s to %s", was, got)
		}
	})
}

// lostTwice reports whether a text of states has three windows of one limit.
func lostTwice(text string) bool { return windowsOf(text) > 2 }

// windowsOf returns how many windows of one limit a text of states has at most.
func windowsOf(text string) (most int) {
	ends := make(map[string]map[string]bool)
	for _, window := range regexp.MustCompile(`([fag][0-9a-z]+):(\d+),`).FindAllStringSubmatch(text, -1) {
		id, end := window[1], window[2]
		if ends[id] == nil {
			ends[id] = make(map[string]bool)
		}
		ends[id][end] = true
		most = max(most, len(ends[id]))
	}
	return most
}

// What the laws don't say: which copy wins.
func TestMerge(t *testing.T) {
	for _, test := range []struct{ name, a, b, want string }{
		{"the later window, with what the earlier one used", "f1s:1000,9-1;", "f1s:1999,1;", "f1s:1999,8;"},
		{"one that follows the other counts alone", "f1s:1000,9-1;", "f1s:2000,1;", "f1s:2000,1;"},
		{"which may be less", "f1s:1000,9-1;", "f1s:1999,10-3;", "f1s:1999,10-3;"},
		{"within one the larger counts", "f1s:1000,9-1;", "f1s:1000,7-3;", "f1s:1000,9-3;"},
		{"entries of either", "f1s:1000,9;", "b1s:5,5,5;a1s:1000,2;", "f1s:1000,9;b1s:5,5,5;a1s:1000,2;"},
		{"sub-bucket by sub-bucket", "s3s~1s:6000,9,2,0,7;", "s3s~1s:6000,7,0,3,6-2;", "s3s~1s:6000,10,2,3,7-2;"},
		{"sub-buckets move up", "s3s~1s:7000,2,2;", "s3s~1s:6000,10,2,3,5;", "s3s~1s:7000,7,2,2,3;"},
		{"and out", "s3s~1s:9000,2,2;", "s3s~1s:6000,10,2,3,5;", "s3s~1s:9000,2,2;"},
		{"with a gap", "s3s~1s:8000,2,2;", "s3s~1s:6000,5,5;", "s3s~1s:8000,7,2,0,5;"},
		{"what was never charged is trimmed", "s3s~1s:7000,2,2;", "s3s~1s:6000,0,0;", "s3s~1s:7000,2,2;"},
		{"the later peak, charge and arrival, the larger credit", "b1s:8,8,6,9.1,3.2;", "b1s:7,7,4,9,4;", "b1s:8,8,5,9.1,4;"},
		{"fractions count", "b1s:8.2,8,8,9.1,3.1;", "b1s:8.1,8,8,9.2,3.2;", "b1s:8.2,8,8,9.2,3.2;"},
		{"with and without credit", "b1s:9.1,9,9;", "b1s:8,8,8,8,4;", "b1s:9.1,9,9,9.1,4;"},
		{"of two lives the later", "b1s:9,8,7;", "b1s:5,5,1,9,4;", "b1s:9,8,7;"},
		{"which is not full before the peak of the earlier", "b1s:9,8,7;", "b1s:12.1,12,1,99,50;", "b1s:12.1,11,10;"},
		{"with its credit", "b1s:9,8,7,12,3;", "b1s:12.1,12,1,99,50;", "b1s:12.1,11,10,12.1,3;"},
		{"the larger void", "f1s:2000,9-5-4;", "f1s:2000,9-6-2;", "f1s:2000,9-6-4;"},
	} {
		a, b := decode(t, test.a), decode(t, test.b)
		ab, ba := state.Merge(a, b, state.At{}), state.Merge(b, a, state.At{})
		want := decode(t, test.want)
		if !ab.Equal(&want) || !ba.Equal(&want) {
			t.Errorf("%s: %s and %s give %s and %s, want %s", test.name, test.a, test.b, ab.String(), ba.String(), test.want)
		}
	}
}

// TestOldFloorsAreHarmless: where nothing was lost, a floor of the same history teaches nothing, whatever happened
// since, and however long ago the request that brings it has read the clock.
func TestOldFloorsAreHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		var floors []state.State
		w.live(t, "tick take take take peek refund reset max code", func(string) {
			floors = append(floors, w.state.Clone())
			floor := floors[rapid.IntRange(0, len(floors)-1).Draw(t, "floor")]
			for _, now := range []state.At{w.now, {Micros: w.now.Micros - w.drawPause(t), Phase: w.now.Phase}} {
				want := settled(&w.state, w.policy, now)
				got := w.state.Clone()
				learned := got.Join(w.policy, now, &floor)
				if got = settled(&got, w.policy, now); learned || !got.Equal(&want) {
					t.Fatalf("%s learned %t from %s at %d: %s", want.String(), learned, floor.String(), now.Micros, got.String())
				}
			}
		})
	})
}

// The same for Merge: a copy from before the bucket was full has nothing to say to one that has been charged since.
func TestMergeWithAnOlderCopy(t *testing.T) {
	p := policyOf(limit.TokenBucket(1, time.Second, 5))
	var s state.State
	v := s.Take(p, at(0), 5)
	r := v.Receipt()
	s.Refund(at(0), &r, 5)
	older := s.Clone()
	s.Take(p, at(10*time.Second), 5)
	merged := state.Merge(s, older, at(10*time.Second))
	if v := merged.Take(p, at(10*time.Second), 1); v.Allowed {
		t.Errorf("%s denies, merged with %s it admits: %s", s.String(), older.String(), merged.String())
	}
}

// TestJoinRestoresWhatWasLost: a copy that fell back to an older state, or to none, is as before once it has met the
// newest floor.
func TestJoinRestoresWhatWasLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		older := []state.State{{}}
		w.live(t, "tick take take take refund reset max", func(string) {
			older = append(older, w.state.Clone())
			lost := older[rapid.IntRange(0, len(older)-1).Draw(t, "what is left")].Clone()
			want := settled(&w.state, w.policy, w.now)
			was := settled(&lost, w.policy, w.now)
			floor := w.state.Clone()
			learned := lost.Join(w.policy, w.now, &floor)
			if lost = settled(&lost, w.policy, w.now); !lost.Equal(&want) || learned == was.Equal(&want) {
				t.Fatalf("%s learned %t from %s: %s", was.String(), learned, w.state.String(), lost.String())
			}
			if !floor.Equal(&w.state) {
				t.Fatalf("the floor changed from %s to %s", w.state.String(), floor.String())
			}
			// No memory is shared with the floor.
			lost.Take(w.policy, w.now, 1)
			if !floor.Equal(&w.state) {
				t.Fatalf("a take changed the floor from %s to %s", w.state.String(), floor.String())
			}
		})
	})
}

// TestFloorAfterALoss: what was admitted between a loss and the first floor is all that is forgotten, also where a window
// was opened after the loss.
func TestFloorAfterALoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take refund reset", func(string) {})
		floor := w.state
		w.state = state.State{}
		w.live(t, "tick take", func(string) {
			joined, before := w.state.Clone(), floor.Clone()
			joined.Join(w.policy, w.now, &floor)
			v, was := joined.Peek(w.policy, w.now, 1), before.Peek(w.policy, w.now, 1)
			bound := slices.Collect(was.All())
			i := 0
			for status := range v.All() {
				if status.Remaining > bound[i].Remaining {
					t.Fatalf("%s with the floor %s: %s; the floor said %s", w.state.String(), floor.String(), sayAll(&v), sayAll(&was))
				}
				i++
			}
		})
	})
}

func TestJoin(t *testing.T) {
	p := policyOf(limit.Fixed(10, time.Second), limit.Sliding(10, 3*time.Second, time.Second), limit.TokenBucket(1, time.Second, 5))
	for _, test := range []struct {
		name, stored, floor, want string
		now                       state.At
		learned                   bool
	}{
		{"over entries of the floor", "", "f1s:1000,9;s3s~1s:1000,1,1;b1s:1000000,9,9;", "", state.At{Micros: 1_000_000}, false},
		{"one microsecond before", "", "f1s:1000,9;s3s~1s:1000,1,1;b1s:1000000,9,9;", "f1s:1000,9;s3s~1s:1000,1,1;b1s:1000000,9,9;",
			state.At{Micros: 999_999}, true},
		{"over entries of the store", "f1s:1000,9;s3s~1s:1000,1,1;b1s:1000000,9,9,1000000,500000;", "",
			"f1s:1000,9;s3s~1s:1000,1,1;b1s:1000000,9,9,1000000,500000;", state.At{Micros: 1_000_000}, false},
		{"over entries of both", "f1s:1000,9;b1s:1000000,9,9;", "f1s:900,9-1;b1s:900000,9,9,900000,800000;", "f1s:1000,9;b1s:1000000,9,9;", state.At{Micros: 1_000_000}, false},
		{"old credit and a new charge", "b1s:1500000,9,9;", "b1s:1000000,9,9,1000000,900000;", "b1s:1500000,9,9;", state.At{Micros: 1_000_000}, false},
		{"the same by a clock that lags", "b1s:1500000,9,9;", "b1s:1000000,9,9,1000000,900000;", "b1s:1500000,9,9;", state.At{Micros: 900_000}, false},
		{"a life that was lost", "b1s:1300000,9,9;", "b1s:1500000,900000,9,1600000,900000;", "b1s:1500000,200009,200009;", state.At{Micros: 1_000_000}, true},
		{"entries of other limits", "f1s:2000,1;", "f2s:2000,9;a1s:2000,9;b2s:3000000,9,9;", "f1s:2000,1;", state.At{Micros: 1_000_000}, false},
		{"what the store knows", "f1s:2000,3-1;", "f1s:2000,2;", "f1s:2000,3-1;", state.At{Micros: 1_000_000}, false},
		{"a charge", "f1s:2000,3-1;", "f1s:2000,4;", "f1s:2000,4-1;", state.At{Micros: 1_000_000}, true},
		{"a refund", "f1s:2000,3-1;", "f1s:2000,3-2;", "f1s:2000,3-2;", state.At{Micros: 1_000_000}, true},
		{"a later window", "f1s:1500,9;", "f1s:1600,1;", "f1s:1600,9;", state.At{Micros: 1_000_000}, true},
		{"a later window, after one that is over", "f1s:900,9;", "f1s:1600,1;", "f1s:1600,1;", state.At{Micros: 1_000_000}, true},
		{"a later window that has charged more", "f1s:1500,9-8;", "f1s:1600,2-1;", "f1s:1600,2-1;", state.At{Micros: 1_000_000}, true},
		{"an earlier window", "f1s:1600,2-1;", "f1s:1500,9-6;", "f1s:1600,3-1;", state.At{Micros: 1_000_000}, true},
		{"an earlier window that used less", "f1s:1600,3-1;", "f1s:1500,9-6;", "f1s:1600,3-1;", state.At{Micros: 1_000_000}, false},
		{"a later window that counts the same", "f1s:1500,1;", "f1s:1600,1;", "f1s:1600,1;", state.At{Micros: 1_000_000}, true},
		{"a sub-bucket", "s3s~1s:3000,1,1;", "s3s~1s:2000,1,1;", "s3s~1s:3000,2,1,1;", state.At{Micros: 1_000_000}, true},
		{"a refund in a sub-bucket", "s3s~1s:3000,2,1,1;", "s3s~1s:2000,0,1-1;", "s3s~1s:3000,1,1,1-1;", state.At{Micros: 1_000_000}, true},
		{"the first limit only", "f1s:2000,1;b1s:1500000,9,9;", "f1s:2000,2;b1s:1500000,9,9;", "f1s:2000,2;b1s:1500000,9,9;",
			state.At{Micros: 1_000_000}, true},
		{"an arrival", "b1s:1500000,9,9,1500000.1,3;", "b1s:1500000,9,9,1500000.2,2.5;", "b1s:1500000,9,9,1500000.2,3;", state.At{Micros: 1_000_000}, true},
		{"a credit", "b1s:1500000,9,9,1500000.1,3;", "b1s:1500000,9,9,1500000,3.1;", "b1s:1500000,9,9,1500000.1,3.1;", state.At{Micros: 1_000_000}, true},
		{"a later charge", "b1s:1500000,9,9;", "b1s:1500000,9,8;", "b1s:1500000,9,8;", state.At{Micros: 1_000_000}, true},
	} {
		s, floor, want := decode(t, test.stored), decode(t, test.floor), decode(t, test.want)
		learned := s.Join(p, test.now, &floor)
		if learned != test.learned || !s.Equal(&want) {
			t.Errorf("%s: %s and %s give %s, learned %t; want %s, %t", test.name, test.stored, test.floor, s.String(), learned,
				test.want, test.learned)
		}
		if got := floor.String(); got != test.floor {
			t.Errorf("%s: the floor became %s", test.name, got)
		}
	}
}

// TestDeniedChangesNothing, for any policy; nor does a peek.
func TestDeniedChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 5)
		var before state.State
		w.live(t, "tick take take take peek refund reset code", func(kind string) {
			got := settled(&w.state, w.policy, w.now)
			if was := settled(&before, w.policy, w.now); (kind == "take" && !w.last.Allowed || kind == "peek") && !got.Equal(&was) {
				t.Fatalf("%s: %s became %s", kind, was.String(), got.String())
			} else if kind == "take" && w.last.Allowed && got.Equal(&was) {
				t.Fatalf("an admitted take left %s as it was", was.String())
			}
			before = w.state.Clone()
		})
	})
}

// TestPeekLeavesNoTrace: whoever only looked, or was denied, has not changed what a clock that steps back will meet.
func TestPeekLeavesNoTrace(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(3, time.Minute), limit.Fixed(3, time.Minute).Aligned(),
		limit.Sliding(3, time.Minute, time.Second), limit.TokenBucket(3, time.Minute, 3),
	} {
		p := policyOf(l)
		var s state.State
		s.Take(p, at(59*time.Second), 3)
		looked := s.Clone()
		looked.Peek(p, at(2*time.Minute), 1)
		want := s.Take(p, at(59*time.Second), 3)
		if got := looked.Take(p, at(59*time.Second), 3); sayAll(&got) != sayAll(&want) {
			t.Errorf("%s, after the clock stepped back: %s; with a peek before: %s", l, sayAll(&want), sayAll(&got))
		}
	}
}

// TestCloneSharesNoMemory: neither side sees what happens to the other.
func TestCloneSharesNoMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take refund", func(string) {})
		clone := w.state.Clone()
		if !clone.Equal(&w.state) || clone.Until() != w.state.Until() || clone.String() != w.state.String() {
			t.Fatalf("%s cloned as %s", w.state.String(), clone.String())
		}
		text := clone.String()
		w.live(t, "tick take take refund reset", func(string) {})
		if got := clone.String(); got != text {
			t.Fatalf("the clone changed from %s to %s", text, got)
		}
		text = w.state.String()
		w2 := *w
		w2.state = clone
		w2.live(t, "tick take take reset", func(string) {})
		if got := w.state.String(); got != text {
			t.Fatalf("the original changed from %s to %s", text, got)
		}
	})
}

// TestUntil: from then on and not before nothing is remembered.
func TestUntil(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take refund reset", func(string) {
			until := w.state.Until()
			if w.state.Empty() != (until == 0) {
				t.Fatalf("%s: empty %t until %d", w.state.String(), w.state.Empty(), until)
			}
			if until == 0 {
				return
			}
			before := settled(&w.state, w.policy, state.At{Micros: until - 1, Phase: w.now.Phase})
			then := settled(&w.state, w.policy, state.At{Micros: until, Phase: w.now.Phase})
			if before.Empty() || !then.Empty() || then.String() != "" {
				t.Fatalf("%s: just before %s, then %s", w.state.String(), before.String(), then.String())
			}
		})
	})
}

// TestIdentity: a limit's counts belong to its algorithm, window, precision and alignment. What changes under the
// same identity keeps them; any other limit starts afresh; and those of limits that a policy doesn't have survive it
// for as long as they are alive, in whatever order.
func TestIdentity(t *testing.T) {
	base := limit.Fixed(10, time.Minute)
	for _, test := range []struct {
		changed limit.Limit
		kept    bool
	}{
		{base.Named("other"), true},
		{limit.Fixed(5, time.Minute), true},
		{base.Aligned(), false},
		{base.Staggered(), false},
		{limit.Fixed(10, time.Hour), false},
		{limit.Sliding(10, time.Minute, time.Minute), false},
		{limit.TokenBucket(10, time.Minute, 10), false},
	} {
		var s state.State
		s.Take(policyOf(base), at(0), 3)
		v := s.Peek(policyOf(test.changed), at(0), 1)
		if kept := v.Binding().Remaining == test.changed.Quota()-3; kept != test.kept {
			t.Errorf("%s after %s: %s", test.changed, base, sayAll(&v))
		}
	}
	sliding := limit.Sliding(10, time.Minute, time.Second)
	var s state.State
	s.Take(policyOf(sliding), at(0), 3)
	if v := s.Peek(policyOf(limit.Sliding(10, time.Minute, 2*time.Second)), at(0), 1); v.Binding().Remaining != 10 {
		t.Errorf("another precision: %s", sayAll(&v))
	}
	if v := s.Peek(policyOf(sliding), at(0), 1); v.Binding().Remaining != 7 {
		t.Errorf("the first precision again: %s", sayAll(&v))
	}
}

func TestPoliciesTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawPolicy(t, 6).Limits
		draw := func(name string) *limit.Policy { // some of the limits, in some order
			limits := slices.Clone(rapid.Permutation(all).Draw(t, name))
			return &limit.Policy{Limits: limits[:rapid.IntRange(1, len(limits)).Draw(t, "limits")]}
		}
		policies := []*limit.Policy{draw("one"), draw("other"), draw("third")}
		models := map[limit.Limit]model{}
		for _, l := range all {
			models[l] = newModel(l)
		}
		w := &world{policy: policies[0], now: at(0)}
		repeat(t, func(t *rapid.T) {
			w.policy = rapid.SampledFrom(policies).Draw(t, "policy")
			w.tick(t)
			cost, want := w.drawCost(t), true
			for _, l := range w.policy.Limits {
				want = want && models[l].admits(w.now, cost)
			}
			if w.last = w.state.Take(w.policy, w.now, cost); w.last.Allowed != want {
				t.Fatalf("%d under %v: %s, want %t: %s", cost, w.policy.Limits, sayAll(&w.last), want, w.state.String())
			}
			for _, l := range w.policy.Limits {
				if want {
					models[l].charge(w.now, cost)
				}
			}
			for entry := range strings.SplitSeq(strings.TrimSuffix(w.state.String(), ";"), ";") {
				if s := decode(t, entry+";"); want && s.Until() <= w.now.Micros {
					t.Fatalf("%s is over and still there after a charge", entry)
				}
			}
		})
	})
}

func TestEqual(t *testing.T) {
	texts := []string{
		"", "f1s:1000,1;", "f1s:1001,1;", "f1s:1000,2;", "f1s:1000,2-1;", "a1s:1000,1;", "f2s:1000,1;", "b1s:1000,2,2;", "b1s:1000.1,2,2;",
		"b1s:1000,3,2;", "b1s:1000,2,1;", "b1s:1000,2,2,1000,1;", "b1s:1000,2,2,1000,1.1;", "b1s:999,2,2,1000,1;", "b1s:999,1,1,1000,1;", "b1s:999.1,2,2,1000,1;", "f1s:1000,2-1-1;", "s3s~1s:3000,1,1;", "s3s~1s:3000,1,0,1;", "s3s~1s:3000,1,2-1;", "s3s~1s:4000,1,1;",
		"s3s~1s:3000,2,1,1;", "s2s~1s:3000,1,1;", "s3s~3s:3000,1,1;", "f1s:1000,1;b1s:1000,2,2;",
	}
	for i, a := range texts {
		for j, b := range texts {
			x, y := decode(t, a), decode(t, b)
			if got := x.Equal(&y); got != (i == j) {
				t.Errorf("%q equals %q: %t", a, b, got)
			}
		}
	}
	x, y := decode(t, "f1s:1000,1;b1s:1000,2,2;"), decode(t, "b1s:1000,2,2;f1s:1000,1;")
	if !x.Equal(&y) {
		t.Error("the order of entries matters")
	}
	// Room that a policy made is nothing that is remembered.
	z := state.State{}
	z.Peek(policyOf(limit.PerSecond(1)), at(0), 1)
	if zero := (state.State{}); !z.Equal(&zero) || !zero.Equal(&z) || !z.Empty() {
		t.Errorf("a peek of nothing left %q", z.String())
	}
}
