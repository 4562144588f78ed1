package throttler_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// audit is an Observer that prints resets and the ends of outages.
type audit struct{}

func (audit) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

func (audit) End(_ context.Context, e *throttler.Event) {
	if e.Op == throttler.OpReset {
		fmt.Println(e.Op, e.Policy.Name, e.Err)
	}
}

func (audit) Outage(_ context.Context, o throttler.Outage) {
	if o.Over {
		fmt.Println("no verdicts for", o.Duration)
	}
}

func ExampleObserver() {
	t, err := throttler.New(throttler.Config{
		Policy:   limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(60)}},
		Observer: audit{},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	if err := t.Reset(context.Background(), "user:42"); err != nil {
		log.Fatal(err)
	}
	// Output:
	// reset api <nil>
}

func TestOperationsAreObserved(t *testing.T) {
	t.Parallel()
	book, b := &notes{}, newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{
		Backend: b, Observer: book, Allow: []string{"friend"},
		Policy: throttlertesting.One(limit.Sliding(10, time.Minute, time.Second)),
	})
	for _, fail := range []error{nil, throttlertesting.Outage(false)} {
		b.failWith(func(string) error { return fail })
		for _, key := range []string{"k", "friend", ""} {
			_, _ = th.Peek(t.Context(), key)
			_, _ = th.Usage(t.Context(), key, time.Minute)
			_ = th.Reset(t.Context(), key)
		}
	}
	_, _ = th.Usage(t.Context(), "k", time.Hour)
	var none context.Context
	if err := th.Reset(none, "k"); err == nil {
		t.Error("no error without a context")
	}
	var got []string
	for _, o := range book.operations {
		if o.Policy.Name != "test" || o.Duration <= 0 {
			t.Errorf("%+v", o)
		}
		got = append(got, fmt.Sprint(o.Op, " ", o.Decision.Remaining, " ", throttler.Reason(o.Err)))
	}
	most := fmt.Sprint("peek ", limit.MaxCount, " ")
	want := []string{
		"peek 10 ", "usage 0 ", "reset 0 ", most, "usage 0 ", "reset 0 ", "peek 0 invalid", "usage 0 invalid", "reset 0 invalid",
		"peek 0 unavailable", "usage 0 unavailable", "reset 0 unavailable",
		most, "usage 0 unavailable", "reset 0 unavailable", "peek 0 invalid", "usage 0 invalid", "reset 0 invalid",
		"usage 0 invalid",
	}
	if !slices.Equal(got, want) {
		t.Errorf("observed %q\nwant %q", got, want)
	}
	if len(book.started) != 0 {
		t.Error("an operation was observed as a decision")
	}
	if s := fmt.Sprint(throttler.OpReset, throttler.Operation(9)); s != "reset operation(9)" {
		t.Errorf("String: %q", s)
	}
}
