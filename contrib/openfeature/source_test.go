package openfeature_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/sluice-go/sluice/contrib/openfeature"
	"github.com/sluice-go/sluice/featureflag"
)

func TestSourceNeedsAClient(t *testing.T) {
	t.Parallel()
	if _, err := openfeature.Source((*sdk.Client)(nil), openfeature.Config{}); err == nil {
		t.Error("a nil *openfeature.Client was accepted")
	}
	if _, err := openfeature.Source(nil, openfeature.Config{}); err == nil || !strings.Contains(err.Error(), "client is nil") {
		t.Errorf("error %v", err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		answer answer
		want   featureflag.Value
		err    string // part of it
	}{
		{answer: answer{value: 12.5}, want: featureflag.Value{Percent: 12.5}},
		{answer: answer{value: 50}, want: featureflag.Value{Percent: 50}},
		{answer: answer{value: 0.0, metadata: version(7)}, want: featureflag.Value{Version: 7}},
		{answer: answer{value: 100, metadata: sdk.FlagMetadata{"owner": "me"}}, want: featureflag.Value{Percent: 100}},
		{answer: answer{value: 101.0}, want: featureflag.Value{Percent: 101}}, // package featureflag refuses it
		{answer: answer{value: "50"}, err: "TYPE_MISMATCH"},
		{answer: answer{value: true}, err: "TYPE_MISMATCH"},
		{answer: answer{}, err: "TYPE_MISMATCH"},
		{answer: answer{value: -1.0}, err: `no value, reason "STATIC"`},
		{answer: answer{disabled: true}, want: featureflag.Value{Killed: true}},

		{answer: answer{value: 1, metadata: version(int8(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(int16(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(int32(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(int64(1<<38 - 1))}, want: featureflag.Value{Percent: 1, Version: 1<<38 - 1}},
		{answer: answer{value: 1, metadata: version(uint(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(uint8(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(uint16(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(uint32(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(uint64(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(float32(7))}, want: featureflag.Value{Percent: 1, Version: 7}},
		{answer: answer{value: 1, metadata: version(179012345678.0)}, want: featureflag.Value{Percent: 1, Version: 179012345678}},
		{answer: answer{value: 1, metadata: version(json.Number("7"))}, want: featureflag.Value{Percent: 1, Version: 7}},

		{answer: answer{value: 1, metadata: version(0)}, err: `metadata "version" = 0`},
		{answer: answer{value: 1, metadata: version(-7)}, err: `metadata "version" = -7`},
		{answer: answer{value: 1, metadata: version(uint64(0))}, err: `metadata "version" = 0`},
		{answer: answer{value: 1, metadata: version(7.5)}, err: `metadata "version" = 7.5`},
		{answer: answer{value: 1, metadata: version(-7.0)}, err: `metadata "version" = -7`},
		{answer: answer{value: 1, metadata: version(math.NaN())}, err: `metadata "version" = NaN`},
		{answer: answer{value: 1, metadata: version(math.Inf(1))}, err: `metadata "version" = +Inf`},
		{answer: answer{value: 1, metadata: version(1e17)}, err: `metadata "version" = 1e+17`},
		{answer: answer{value: 1, metadata: version(json.Number("7.5"))}, err: `metadata "version" = 7.5`},
		{answer: answer{value: 1, metadata: version("7")}, err: `metadata "version" = 7`},
		{answer: answer{value: 1, metadata: version(true)}, err: `metadata "version" = true`},
		{answer: answer{value: 1, metadata: version(nil)}, err: `metadata "version" = <nil>`},
	} {
		got, err := newSystem(t).set(test.answer).start().source(openfeature.Config{}).Load(t.Context(), "use-redis")
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), `flag "use-redis": `) || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v: %+v, error %v, want %q", test.answer, got, err, test.err)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%+v: %+v, %v, want %+v", test.answer, got, err, test.want)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	s := newSystem(t).start()
	evaluate := func(_ memprovider.InMemoryFlag, flat sdk.FlattenedContext) (any, sdk.ProviderResolutionDetail) {
		percent := 1.0
		if flat["region"] == "north" {
			percent = 2
		}
		return percent, sdk.ProviderResolutionDetail{FlagMetadata: sdk.FlagMetadata{"version": 3, "revision": 4}}
	}
	s.mem.UpdateFlags(map[string]memprovider.InMemoryFlag{"limits.use_redis": {ContextEvaluator: &evaluate}})
	north := sdk.NewTargetlessEvaluationContext(map[string]any{"region": "north"})
	for _, test := range []struct {
		cfg  openfeature.Config
		name string
		want featureflag.Value
	}{
		{openfeature.Config{}, "limits.use_redis", featureflag.Value{Percent: 1, Version: 3}},
		{openfeature.Config{Key: "limits.use_redis", Version: "revision"}, "use-redis", featureflag.Value{Percent: 1, Version: 4}},
		{openfeature.Config{Key: "limits.use_redis", Context: north}, "use-redis", featureflag.Value{Percent: 2, Version: 3}},
		{openfeature.Config{Key: "limits.use_redis", Version: "none"}, "use-redis", featureflag.Value{Percent: 1}},
	} {
		if got, err := s.source(test.cfg).Load(t.Context(), test.name); err != nil || got != test.want {
			t.Errorf("%+v: %+v, %v, want %+v", test.cfg, got, err, test.want)
		}
	}
}

// Where there is no value, the default that the SDK answers must not be taken for one.
func TestNoValueIsAnError(t *testing.T) {
	t.Parallel()
	unset := newSystem(t)
	if v, err := unset.source(openfeature.Config{}).Load(t.Context(), "use-redis"); err == nil {
		t.Errorf("without a provider: %+v", v)
	}
	v, err := newSystem(t).start().source(openfeature.Config{}).Load(t.Context(), "use-redis")
	if !errors.Is(err, featureflag.ErrNotFound) || !strings.Contains(err.Error(), "FLAG_NOT_FOUND") {
		t.Errorf("a flag that isn't there: %+v, %v", v, err)
	}

	var details sdk.FloatEvaluationDetails
	details.Value = 50 // however plausible
	failed := details
	failed.Reason = sdk.ErrorReason
	coded := details
	coded.ErrorCode, coded.ErrorMessage = sdk.ParseErrorCode, "line 1"
	absent := details
	absent.ErrorCode = sdk.FlagNotFoundCode
	boom := errors.New("boom")
	for _, test := range []struct {
		client *fake
		text   string
		is     error
	}{
		{client: &fake{details: failed}, text: "GENERAL"},
		{client: &fake{details: coded}, text: "PARSE_ERROR: line 1"},
		{client: &fake{details: absent}, text: "FLAG_NOT_FOUND", is: featureflag.ErrNotFound},
		{client: &fake{details: details, err: boom}, text: "boom", is: boom},
	} {
		v, err := source(t, test.client, openfeature.Config{}).Load(t.Context(), "use-redis")
		if err == nil || !strings.Contains(err.Error(), test.text) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%+v, error %v, want %q", v, err, test.text)
		}
	}
}

// An off variation is a value that somebody chose.
func TestDisabledWithAValue(t *testing.T) {
	t.Parallel()
	client := &fake{details: sdk.FloatEvaluationDetails{Value: 100}}
	client.details.Reason = sdk.DisabledReason
	v, err := source(t, client, openfeature.Config{}).Load(t.Context(), "use-redis")
	if want := (featureflag.Value{Percent: 100}); err != nil || v != want {
		t.Errorf("%+v, %v, want %+v", v, err, want)
	}
}

// The SDK reports an error as text: what ended the evaluation must be found again.
func TestTheDeadlineIsFound(t *testing.T) {
	t.Parallel()
	s := newSystem(t).start()
	var ctx atomic.Pointer[context.Context] // the memory provider keeps the context from the evaluator
	evaluate := func(memprovider.InMemoryFlag, sdk.FlattenedContext) (any, sdk.ProviderResolutionDetail) {
		<-(*ctx.Load()).Done()
		return 50.0, sdk.ProviderResolutionDetail{ResolutionError: sdk.NewGeneralResolutionError("no answer")}
	}
	s.mem.UpdateFlags(map[string]memprovider.InMemoryFlag{"use-redis": {ContextEvaluator: &evaluate}})
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ctx.Store(&short)
	_, err := s.source(openfeature.Config{}).Load(short, "use-redis")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("error %v", err)
	}
}

// Nothing about a key reaches the system, and it doesn't choose the keys.
func TestKeysAreChosenHere(t *testing.T) {
	t.Parallel()
	var evaluations atomic.Int64
	s := newSystem(t)
	evaluate := func(_ memprovider.InMemoryFlag, flat sdk.FlattenedContext) (any, sdk.ProviderResolutionDetail) {
		evaluations.Add(1)
		if len(flat) != 0 {
			t.Errorf("the system is told %v", flat)
		}
		return 30.0, sdk.ProviderResolutionDetail{Reason: sdk.SplitReason}
	}
	s.mem.UpdateFlags(map[string]memprovider.InMemoryFlag{"percent": {ContextEvaluator: &evaluate}})
	s.start()
	f := open(t, featureflag.Config{Name: "use-redis", Refresh: never, Source: s.source(openfeature.Config{Key: "percent"})})
	here := open(t, featureflag.Config{Name: "use-redis", Source: featureflag.Static(30)})
	awaitPercent(t, f, 30)
	for i := range 10_000 {
		if key := fmt.Sprint("user:", i); f.Enabled(key) != here.Enabled(key) {
			t.Fatalf("%s is %t, and with a static source %t", key, f.Enabled(key), here.Enabled(key))
		}
	}
	if n := evaluations.Load(); n > 10 { // the first load, and one for each event of the start
		t.Errorf("%d evaluations", n)
	}
}

func TestOneSourceForSeveralFlags(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := make(map[string]memprovider.InMemoryFlag)
	for i := range 10 {
		evaluate := func(memprovider.InMemoryFlag, sdk.FlattenedContext) (any, sdk.ProviderResolutionDetail) {
			d := sdk.ProviderResolutionDetail{FlagMetadata: version(i + 100)}
			if i%2 == 1 {
				d.FlagMetadata = nil // versions are remembered for each flag by itself
			}
			return float64(i), d
		}
		all[fmt.Sprint("flag-", i)] = memprovider.InMemoryFlag{ContextEvaluator: &evaluate}
	}
	s.mem.UpdateFlags(all)
	src := s.start().source(openfeature.Config{})
	var flags []*featureflag.Flag
	for i := range 10 {
		flags = append(flags, open(t, featureflag.Config{Name: fmt.Sprint("flag-", i), Source: src, Refresh: quick}))
	}
	for i, f := range flags {
		want := uint64(i + 100)
		if i%2 == 1 {
			want = 1
		}
		await(t, f, "the value", loaded(float64(i), want))
	}
}
