package state_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestEncoding pins the encoding byte for byte: stored states outlive the process that wrote them, and scripts read
// and write the same.
func TestEncoding(t *testing.T) {
	type take struct {
		at             time.Duration
		cost, refunded int64 // refunded at once
	}
	for _, test := range []struct {
		policy *limit.Policy
		takes  []take
		want   string
	}{
		{policyOf(limit.PerMinute(10)), nil, ""},
		{policyOf(limit.PerMinute(10)), []take{{123 * time.Millisecond, 7, 0}}, "f1m:1767247260123,7;"},
		{policyOf(limit.PerMinute(10)), []take{{123 * time.Millisecond, 7, 3}}, "f1m:1767247260123,7-3;"},
		{policyOf(limit.PerMinute(10)), []take{{123 * time.Millisecond, 7, 7}}, "f1m:1767247260123,7-7;"},
		{policyOf(limit.Fixed(1, 90*time.Second).Aligned()), []take{{time.Second, 1, 0}}, "a90s:1767247290000,1;"},
		{policyOf(limit.Fixed(1, 1500*time.Millisecond).Staggered()), []take{{0, 1, 0}}, "g1500ms:1767247201500,1;"},
		{policyOf(anHour), []take{{0, 7, 0}}, "s1h~1m:1767250800000,7,7;"},
		{policyOf(anHour), []take{{0, 7, 0}, {3 * time.Minute, 5, 2}, {3*time.Minute + 1, 1, 0}}, "s1h~1m:1767250980000,11,6-2,0,0,7;"},
		{policyOf(anHour), []take{{0, 7, 0}, {time.Hour - 1, 1, 0}}, "s1h~1m:1767254340000,8,1" + strings.Repeat(",0", 58) + ",7;"},
		{
			policyOf(anHour), []take{{0, 7, 0}, {time.Minute, 2, 0}, {time.Hour, 1, 0}},
			"s1h~1m:1767254400000,3,1" + strings.Repeat(",0", 58) + ",2;",
		},
		{policyOf(limit.TokenBucket(10, time.Second, 20)), []take{{0, 1, 0}}, "b1s:1767247200100000,100000,100000;"},
		{policyOf(limit.TokenBucket(3, time.Second, 20)), []take{{0, 1, 0}}, "b1s:1767247200333333.1,333333,333333;"},
		{policyOf(limit.TokenBucket(3, time.Second, 20)), []take{{0, 3, 0}, {time.Microsecond, 1, 0}}, "b1s:1767247201333333.1,1333333,1333332;"},
		{policyOf(limit.TokenBucket(3, time.Second, 20)), []take{{0, 2, 1}}, "b1s:1767247200666666.2,666666,666666,1767247200666666.2,333333.1;"},
		{policyOf(limit.TokenBucket(3, 10*time.Microsecond, 20)), []take{{0, 4, 3}}, "b10us:1767247200000013.1,13,13,1767247200000013.1,10;"},
		{policyOf(limit.TokenBucket(3, time.Microsecond, 20)), []take{{0, 2, 1}}, "b1us:1767247200000000.2,0,0,1767247200000000.2,0.1;"},
		{
			policyOf(limit.PerDay(9), limit.TokenBucket(1, time.Hour, 9), limit.Sliding(9, 2*time.Second, time.Second)),
			[]take{{0, 2, 1}},
			"f24h:1767333600000,2-1;b1h:1767254400000000,7200000000,7200000000,1767254400000000,3600000000;s2s~1s:1767247202000,1,2-1;",
		},
	} {
		var s state.State
		for _, take := range test.takes {
			r := chargeOf(t, &s, test.policy, at(take.at), take.cost)
			s.Refund(at(take.at), r, take.refunded)
		}
		if got := s.String(); got != test.want {
			t.Errorf("%v: got %s, want %s", test.policy.Limits, got, test.want)
		}
		if got, err := s.AppendText([]byte("before ")); string(got) != "before "+test.want || err != nil {
			t.Errorf("appended %s, %v", got, err)
		}
		if decoded := decode(t, test.want); !decoded.Equal(&s) {
			t.Errorf("%s decoded as %s", test.want, decoded.String())
		}
	}
}

// TestCodecRoundTrip: decoding what was encoded is the same state, encoded the same, by string and by bytes.
func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 5)
		w.live(t, "tick take take refund reset max rate", func(string) {
			text := w.state.String()
			fromString, err := state.ParseState(text)
			if err != nil || !fromString.Equal(&w.state) || fromString.String() != text {
				t.Fatalf("%s decoded as %s, %v", text, fromString.String(), err)
			}
			fromBytes, err := state.ParseState([]byte(text))
			if err != nil || !fromBytes.Equal(&w.state) || fromBytes.String() != text {
				t.Fatalf("%s decoded as %s, %v", text, fromBytes.String(), err)
			}
		})
	})
}

func TestCorruptStates(t *testing.T) {
	good := []string{
		"", "f1m:1,0;", "f1m:9007199254740,9007199254740991-9007199254740991-9007199254740991;", "f1m:1,3-2-1;", "a1ms:1,1;", "g87840h:1,1;",
		"s1s~1s:1000,0,0;", "s2s~1s:1000,0,0,1-1;", "s1h~30s:3600000,1,1;",
		"b1us:1,1,1;", "b1s:0.1,0,0;", "b1s:5,5,5;", "b1s:5,5,1;", "b1s:1,1,1,5.2,5.1;", "b1s:5.2,5,5,5.2,5.2;", "b1s:1,1,1,1,1;",
		"b1s:9007199254740991.4503599627370495,9007199254740991,0;", "b1s:1.1,1,0;", "b1s:1.1,1,1,1.1,0.1;",
		"b1s:1,1,1,4503599627370496,4503599627370495;", "m:1,1,0;", "m:1,0,1;", "f1m:1,0;m:9007199254740,9007199254740991,9007199254740991;",
		"f1m:1,0;a1m:1,0;g1m:1,0;s1m~1m:60000,0,0;s1m~1s:60000,0,0;b1m:1,1,1;f1h:1,0;",
	}
	for _, text := range good {
		if s, err := state.ParseState(text); err != nil || s.String() != text {
			t.Errorf("%q: %q, %v", text, s.String(), err)
		}
	}
	for _, text := range []string{
		// not entries
		" ", "x", ";", ":", "f", "f1m", "f1m:", "f1m:;", "f1m:1", "f1m:1,", "f1m:1,1", "f1m:1,1;;", "f1m:1,1; ", " f1m:1,1;",
		"f1m:1,1;f", "f1m:1,1;\n", "\x00", "f1m:1,1;\x00", "f1m:1,1;f1m:1,1;", "f1m:1,1;b1s:1;f1m:2,1;",
		// identities
		"x1m:1,1;", "F1m:1,1;", ":1,1;", "1m:1,1;", "f:1,1;", "fm:1,1;", "f1:1,1;", "f0m:1,1;", "f-1m:1,1;", "f01m:1,1;",
		"f60s:1,1;", "f1000ms:1,1;", "f60m:1,1;", "f1.5s:1,1;", "f1us:1,1;", "f1ns:1,1;", "f1d:1,1;", "f1M:1,1;", "f1m~1m:1,1;",
		"b1ns:1,1,1;", "b1000us:1,1,1;", "b1m~1s:1,1,1;", "b87841h:1,1,1;", "f87841h:1,1;", "f9007199254740991h:1,1;", "f9007199254740992ms:1,1;",
		"s1m:1000,1,1;", "s1m~:1000,1,1;", "s1m~1:1000,1,1;", "s1s~1m:60000,1,1;", "s1s~300ms:1000,1,1;", "s2m1s~1s:1000,1,1;",
		"s1h~1s:1000,1,1;", "s1m~60s:60000,1,1;", "s1m~1m~1m:60000,1,1;", "s1ms~1us:1,1,1;",
		// counts
		"f1m:0,1;", "f1m:-1,1;", "f1m:+1,1;", "f1m:01,1;", "f1m:1,01;", "f1m:1,-1;", "f1m:1,1-0;", "f1m:1,1-2;", "f1m:1,1-;",
		"f1m:1,1--1;", "f1m:1,2-1-2;", "f1m:1,2-1-0;", "f1m:1,2-2-1-1;", "f1m:9007199254741,1;", "f1m:1,1,1;", "f1m:1 ,1;", "f1m:1.0,1;", "f1m:1e3,1;", "f1m:0x1,1;", "f1m:1,;", "f1m:,1;",
		"f1m:9007199254740992,1;", "f1m:1,9007199254740992;", "f1m:1,99999999999999999999999999;", "f1m:١,1;", "f1m:1,1-01;",
		// sub-buckets
		"s3s~1s:3000;", "s3s~1s:3000,1;", "s3s~1s:3000,0;", "s3s~1s:3000,0,;", "s3s~1s:3000,2,1;", "s3s~1s:3000,1,1,0;",
		"s3s~1s:3000,4,1,1,1,1;", "s3s~1s:3500,1,1;", "s3s~1s:0,1,1;", "s3s~1s:3000,1,1-2;", "s3s~1s:3000,0,0,0;", "s3s~1s:3000,1-1,1;",
		// buckets
		"b1s:1;", "b1s:1,1;", "b1s:5,9,3;", // as they were written without a life
		"b1s:0,0,0;", "b1s:;", "b1s:1.,1,1;", "b1s:1.0,1,1;", "b1s:.1,0,0;", "b1s:1.01,1,1;", "b1s:1,;", "b1s:1,1,;", "b1s:1,1,1,;",
		"b1s:1,0,0;", "b1s:5,5,0;", "b1s:5,1,2;", "b1s:5,6,1;", "b1s:5.1,6,0;", "b1s:5,5,5.1;", "b1s:5,5.1,5;", "b1s:1,1,1,1;",
		"b1s:5,5,5,4,3;", "b1s:5.2,5,5,5.1,3;", "b1s:1,1,1,1,0;", "b1s:1,1,1,1,2;", "b1s:1,1,1,1.1,1.2;", "b1s:1,1,1,1,1,1;", "b1s:1-1,1,1;",
		"b1s:1,1,1,4503599627370496,4503599627370496;", "b1s:1.4503599627370496,1,1;", "b1s:9007199254740992,1,1;",
		"b1s:1,1,1,1,0.0;", "b1s:1.1.1,1,1;", "b1s:1,01,1;", "b1s:1,9007199254740992,1;",
		// fences
		"m", "m:", "m:1;", "m:1,1;", "m:0,1,1;", "m:1,0,0;", "m:1,1,1,1;", "m:1,,1;", "m:1,1-1,1;", "m1s:1,1,1;", "m:1,1,1;m:1,1,1;",
		"m:1,9007199254740992,1;", "m:1,01,1;", "m:9007199254741,1,1;",
	} {
		s, err := state.ParseState(text)
		if !errors.Is(err, state.ErrCorruptState) || !s.Empty() || s.String() != "" {
			t.Errorf("%q: %q, %v, want ErrCorruptState", text, s.String(), err)
		}
	}
}

// What is far too large for a state is refused before it is read.
func TestStatesOfBoundedSize(t *testing.T) {
	entries := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "f%dms:9000000000000,1;", 1001+i*2)
		}
		return b.String()
	}
	for _, test := range []struct {
		name, text string
		want       error
	}{
		{"256 entries", entries(256), nil},
		{"257 entries", entries(257), state.ErrCorruptState},
		{"a hundred thousand", entries(100_000), state.ErrCorruptState},
		{"long identities", "s" + strings.Repeat("1", 1<<20), state.ErrCorruptState},
		{"a long number", "f1m:1,1" + strings.Repeat("1", 1<<20) + "x;", state.ErrCorruptState},
		{"many sub-buckets", "s2m~1s:120000,0" + strings.Repeat(",0", 1<<20) + ";", state.ErrCorruptState},
	} {
		if _, err := state.ParseState(test.text); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// A state from the far future, which only a fault can have written, is no reason to overflow.
func TestRetryAfterOfTheFarFuture(t *testing.T) {
	s := decode(t, "f1m:9007199254740,5;")
	v := s.Take(policyOf(limit.PerMinute(5)), at(0), 1)
	if retry := v.Binding().RetryAfter; v.Allowed || retry < 200*365*24*time.Hour {
		t.Errorf("allowed %t, retry after %s", v.Allowed, retry)
	}
}

// FuzzParseState: what is accepted is what would be written, and the algebra can work with it.
func FuzzParseState(f *testing.F) {
	for _, text := range []string{
		"", "f1m:1795225200123,57;", "f1m:1795225200123,57-3;", "a1m:1795225200000,1;", "g24h:1795225200001,1-1;",
		"s1h~1m:1795226400000,70,57-3,12,0,4;", "s1s~1s:1795226400000,0,0;", "b1s:1795225200123456.1,900,9,1795225200123456.1,0.2;", "b1us:5,5,5;",
		"f1m:1,1;b1s:1,1,1;s3s~1s:3000,1,1;", "b1s:9007199254740991.4503599627370495,9007199254740991,9007199254740991;",
		"s3s~1s:9007199254740000,9007199254740991,9007199254740991;", "f1m:1,1;f1m:1,1;", "f60s:1,1;", "f1m:01,1;",
		"m:1795225200123,7,6;f1m:1,1;",
	} {
		f.Add(text)
	}
	policy := policyOf(
		limit.PerMinute(1), limit.PerMinute(limit.MaxCount).Aligned(), limit.PerDay(3).Staggered(), limit.Sliding(9, 3*time.Second, time.Second),
		anHour, limit.TokenBucket(3, time.Second, 9), limit.TokenBucket(1<<52, time.Microsecond, limit.MaxCount),
	)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := state.ParseState(text)
		fromBytes, errBytes := state.ParseState([]byte(text))
		if (err == nil) != (errBytes == nil) || !s.Equal(&fromBytes) {
			t.Fatalf("%q: %q, %v; from bytes %q, %v", text, s.String(), err, fromBytes.String(), errBytes)
		}
		if err != nil {
			if !errors.Is(err, state.ErrCorruptState) || !s.Empty() {
				t.Fatalf("%q: %q, %v", text, s.String(), err)
			}
			return
		}
		if got := s.String(); got != text {
			t.Fatalf("%q is written %q", text, got)
		}
		if merged := state.Merge(s, fromBytes, state.At{}); !merged.Equal(&s) {
			t.Fatalf("%q merged with itself is %q", text, merged.String())
		}
		for _, micros := range []int64{0, 1, 2_000_000, start.UnixMicro(), s.Until() - 1, s.Until()} {
			// The year 2200 must do: no bucket counts past 2255.
			s, now := s.Clone(), state.At{Micros: min(max(micros, 0), 7_258_118_400_000_000), Phase: 42}
			v := s.Take(policy, now, 1)
			for status := range v.All() {
				if status.Remaining < 0 || status.RetryAfter < 0 && s.Until() < limit.MaxCount {
					t.Fatalf("%q at %d: %s", text, micros, sayAll(&v))
				}
			}
			r := v.Receipt()
			s.Refund(now, &r, 1)
			s.Reset(policy, now)
			if _, err := state.ParseState(s.String()); err != nil {
				t.Fatalf("%q became %q: %v", text, s.String(), err)
			}
		}
	})
}
