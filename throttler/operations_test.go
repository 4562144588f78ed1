package throttler_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// audit is an Observer that prints who gives whom quota back by hand, and the ends of outages. It doesn't care for decisions.
type audit struct{}

func (audit) DecisionStart(ctx context.Context, _ throttler.DecisionStartData) (context.Context, *throttler.Trace) {
	return ctx, nil
}

func (audit) DecisionEnd(context.Context, throttler.DecisionEndData) {}

func (audit) Operation(_ context.Context, data throttler.OperationData) {
	fmt.Println(data.Operation, data.Policy.Name, data.Err)
}

func (audit) OutageEnd(_ context.Context, data throttler.OutageEndData) {
	fmt.Println("no verdicts for", data.Duration)
}

func ExampleOperationObserver() {
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

// operationNotes is an observer of operations.
type operationNotes struct {
	notes
	operations []throttler.OperationData
}

func (n *operationNotes) Operation(_ context.Context, data throttler.OperationData) {
	n.operations = append(n.operations, data)
}

func TestOperationObserver(t *testing.T) {
	t.Parallel()
	book, b := &operationNotes{}, newSpy(t, nil)
	th := newThrottler(t, throttler.Config{
		Backend: b, Observer: book, Allow: []string{"friend"},
		Policy: one(limit.Sliding(10, time.Minute, time.Second)),
	})
	for _, fail := range []error{nil, outage(false)} {
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
		got = append(got, fmt.Sprint(o.Operation, " ", o.Decision.Remaining, " ", throttler.Reason(o.Err)))
	}
	most := fmt.Sprint("peek ", limit.MaxCount, " ")
	want := []string{
		"peek 10 ", "usage 0 ", "reset 0 ", most, "usage 0 ", "reset 0 ", "peek 0 invalid", "usage 0 invalid", "reset 0 invalid",
		"peek 0 unavailable", "usage 0 unavailable", "reset 0 unavailable",
		most, "usage 0 unavailable", "reset 0 unavailable", "peek 0 invalid", "usage 0 invalid", "reset 0 invalid",
		"usage 0 invalid",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %q\nwant %q", got, want)
	}
	if len(book.started) != 0 {
		t.Error("an operation was told of as a decision")
	}
	if s := fmt.Sprint(throttler.OpReset, throttler.Operation(9)); s != "reset operation(9)" {
		t.Errorf("String: %q", s)
	}
}
