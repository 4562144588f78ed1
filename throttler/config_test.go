package throttler_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/registry"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	good := throttlertesting.One(limit.PerMinute(1))
	for _, test := range []struct {
		name string
		cfg  throttler.Config
		want []string // fields
	}{
		{"no policy", throttler.Config{}, []string{"Policy"}},
		{"one bad limit", throttler.Config{Policy: throttlertesting.One(limit.PerMinute(0))}, []string{"Policy: limit 1: max"}},
		{"open without a cap", throttler.Config{Policy: good, Failure: throttler.FailOpen}, []string{"OpenCap"}},
		{"a bad cap", throttler.Config{Policy: good, Failure: throttler.FailOpen, OpenCap: limit.PerMinute(-1)},
			[]string{"OpenCap: max"}},
		{"a cap that nobody uses", throttler.Config{Policy: good, OpenCap: limit.PerMinute(1)}, []string{"OpenCap"}},
		{"a share that is no number", throttler.Config{Policy: good, Processes: math.MaxInt}, []string{"Processes"}},
		{"typed nils", throttler.Config{
			Policy: good, Backend: (*memory.Memory)(nil), Observer: throttler.Observers(audit{}, (*watching)(nil)),
		}, []string{"Backend", "Observer"}},
		{"typed nils in nested chains", throttler.Config{
			Policy: good, Observer: throttler.Observers(audit{}, throttler.Observers((*watching)(nil), audit{}), (*watching)(nil)),
		}, []string{"Observer", "Observer"}},
		{"a typed nil of a source", throttler.Config{Policies: (*registry.Registry)(nil)}, []string{"Policies"}},
		{"all at once", throttler.Config{
			Policy: limit.Policy{Name: "Bad Name"}, Failure: throttler.FailError + 1, Processes: -1,
			RetryAfter: -1, Timeout: -1, OpenCap: limit.PerMinute(1),
		}, []string{"Policy: name", "Policy: limits", "Failure", "Processes", "OpenCap", "RetryAfter", "Timeout"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			th, err := throttler.New(test.cfg)
			if th != nil || err == nil {
				t.Fatalf("New = %v, %v, want an error alone", th, err)
			}
			if got := fields(err); !slices.Equal(got, test.want) {
				t.Errorf("fields = %q, want %q", got, test.want)
			}
		})
	}
}

func TestNewCopiesThePolicy(t *testing.T) {
	t.Parallel()
	policy := throttlertesting.One(limit.PerHour(3))
	th := throttlertesting.New(t, throttler.Config{Policy: policy})
	policy.Limits[0] = limit.PerHour(1000)
	if got := throttlertesting.Allow(t, th, "k").Remaining; got != 2 {
		t.Errorf("Remaining = %d, want 2: the caller's change of the slice reached the Throttler", got)
	}
}

func TestDecision(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2), limit.PerDay(240)}}
	th := throttlertesting.New(t, throttler.Config{Backend: throttlertesting.NewMemory(t, now.Now), Policy: policy})

	start := now.Now()
	first := throttlertesting.Allow(t, th, "k")
	now.Advance(10 * time.Second)
	throttlertesting.Allow(t, th, "k")
	denied := throttlertesting.Allow(t, th, "k")

	for _, test := range []struct {
		name string
		d    throttler.Decision
		want throttler.Decision // but for what All yields
	}{
		{"admitted", first, throttler.Decision{
			Allowed: true, Limit: limit.PerMinute(2), Remaining: 1, ResetAt: start.Add(time.Minute), At: start,
		}},
		{"denied", denied, throttler.Decision{
			Limit: limit.PerMinute(2), ResetAt: start.Add(time.Minute), At: start.Add(10 * time.Second),
			RetryAfter: 50 * time.Second,
		}},
	} {
		d, want := test.d, test.want
		if d.Allowed != want.Allowed || d.Limit != want.Limit || d.Remaining != want.Remaining ||
			!d.ResetAt.Equal(want.ResetAt) || !d.At.Equal(want.At) || d.RetryAfter != want.RetryAfter ||
			d.Source != throttler.Local || d.Guarantee != throttler.Exact || d.Cause != nil {
			t.Errorf("%s: %+v, want %+v", test.name, d, want)
		}
	}
	var limits []limit.Limit
	var left []int64
	for s := range denied.All() {
		limits, left = append(limits, s.Limit), append(left, s.Remaining)
	}
	if !slices.Equal(limits, policy.Limits) || !slices.Equal(left, []int64{0, 238}) {
		t.Errorf("All = %v, %v, want the policy with 0 and 238 left", limits, left)
	}
	for range denied.All() { // may stop early
		break
	}
	for s := range (throttler.Decision{}).All() {
		t.Errorf("the zero Decision yields %v", s)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	memory := throttlertesting.NewMemory(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: memory, Policy: throttlertesting.One(limit.PerHour(3))})
	other := throttlertesting.New(t, throttler.Config{Backend: memory, Policy: throttlertesting.One(limit.PerHour(3))})
	throttlertesting.Allow(t, th, "k")
	for range 2 {
		if err := th.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if _, err := th.Allow(t.Context(), "k"); !errors.Is(err, throttler.ErrClosed) {
		t.Errorf("Allow after Close = %v, want ErrClosed", err)
	}
	if got := throttlertesting.Allow(t, other, "k").Remaining; got != 1 {
		t.Errorf("Remaining = %d by another Throttler on the same backend, want 1", got)
	}
}

// Close in the middle of calls leaves each of them with a decision or ErrClosed.
func TestCloseDuringCalls(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(limit.MaxCount))})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				r, err := th.Reserve(t.Context(), "k", 2)
				if err == nil {
					err = r.Settle(t.Context(), 1)
				}
				if errors.Is(err, throttler.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	throttlertesting.Allow(t, th, "k")
	if err := th.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestFailurePolicyString(t *testing.T) {
	t.Parallel()
	for policy, want := range map[throttler.FailurePolicy]string{
		throttler.FailLocal: "local", throttler.FailClosed: "closed", throttler.FailOpen: "open",
		throttler.FailError: "error", 9: "failure policy(9)",
	} {
		if got := policy.String(); got != want {
			t.Errorf("String = %q, want %q", got, want)
		}
	}
}

// What the backend is not sure of the Throttler doesn't hide.
func TestDecisionPassesDoubtOn(t *testing.T) {
	t.Parallel()
	memory, err := memory.New(memory.Config{MaxKeys: 1})
	if err != nil {
		t.Fatal(err)
	}
	th := throttlertesting.New(t, throttler.Config{Backend: memory, Policy: throttlertesting.One(limit.PerHour(10))})
	if d := throttlertesting.Allow(t, th, "a"); d.Guarantee != throttler.Exact || d.Cause != nil {
		t.Errorf("%+v, want it exact", d)
	}
	throttlertesting.Allow(t, th, "b") // a is forgotten for it
	if d := throttlertesting.Allow(t, th, "a"); d.Guarantee != throttler.Bounded || !errors.Is(d.Cause, backend.ErrEvicted) ||
		d.Source != throttler.Local {
		t.Errorf("%+v, want Bounded because of the eviction", d)
	}
}

// A zero Registry has no policies.
func TestAnEmptyRegistryIsRefused(t *testing.T) {
	t.Parallel()
	_, err := throttler.New(throttler.Config{Policies: &registry.Registry{}})
	if got := fields(err); !slices.Equal(got, []string{"Policies"}) {
		t.Errorf("New = %v, want a refusal of the registry", err)
	}
}

// watching is an Observer that is only there to be nil.
type watching struct{ throttler.Observer }
