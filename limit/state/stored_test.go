package state_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestAll(t *testing.T) {
	const second = int64(time.Second / time.Microsecond)
	for _, test := range []struct {
		state string
		at    int64 // seconds
		want  string
	}{
		{"", 1, ""},
		{"f1m:10000,7-3-1;a1m:10000,2;g1m:10000,1;", 9, "0/1m 4 3 10; 0/1m@aligned 2 0 10; 0/1m@staggered 1 0 10; "},
		{"f1m:10000,7-3-1;a1m:11000,2;", 10, "0/1m@aligned 2 0 11; "},
		{"f1m:10000,7-7;", 9, "0/1m 0 7 0; "},
		{"s3s~1s:6000,8,3-1,0,6;", 3, "0/3s~1s 8 1 6; "},
		{"s3s~1s:6000,8,3-1,0,6;", 4, "0/3s~1s 2 1 6; "},
		{"s3s~1s:6000,6,3-3,0,6;", 3, "0/3s~1s 6 3 4; "},
		{"b1s:9000000,9,9;", 8, "0/1s+0 0 0 9; "},
		{"b1s:9000000,9,9,9000000,1000000;", 7, "0/1s+0 0 0 8; "},
		{"b1s:9000000,9,9,9000000,1000000;", 8, "0/1s+0 0 0 0; "},
		{"m:9000,7,6;t:9000,7,6;", 1, ""},
	} {
		s, err := state.ParseState(test.state)
		if err != nil {
			t.Fatal(test.state, err)
		}
		var got strings.Builder
		for one := range s.All(state.At{Micros: test.at * second}) {
			reset := int64(0)
			if !one.ResetAt.IsZero() {
				reset = one.ResetAt.Unix()
			}
			fmt.Fprintf(&got, "%s %d %d %d; ", one.Limit, one.Used, one.Refunded, reset)
		}
		if got.String() != test.want {
			t.Errorf("%s at %d: %s, want %s", test.state, test.at, got.String(), test.want)
		}
	}
}

// TestAllIsWhatALimitSays: with the Max that a state lacks, it remembers no more and no less.
func TestAllIsWhatALimitSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take refund reset", func(string) {
			said := make(map[string]state.Stored)
			for one := range w.state.All(w.now) {
				said[string(state.AppendID(nil, &one.Limit))] = one
			}
			copied := w.state.Clone()
			v := copied.Peek(w.policy, w.now, 1)
			for status := range v.All() {
				one, l := said[string(state.AppendID(nil, &status.Limit))], status.Limit
				full := status.Remaining == l.Quota()
				switch {
				case l.Algorithm != limit.Bucket && one.Used != l.Max-status.Remaining:
					t.Fatalf("%s: used %d, remaining %d: %s", l, one.Used, status.Remaining, w.state.String())
				case full && l.Algorithm != limit.Bucket, one.ResetAt.IsZero() && full:
				case !one.ResetAt.Equal(status.ResetAt):
					t.Fatalf("%s: full at %v, want %v: %s", l, one.ResetAt, status.ResetAt, w.state.String())
				}
			}
		})
	})
}
