package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

func ExampleConfig_lists() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(1)}},
		Allow:  []string{"healthcheck", "office:*"},
		Deny:   []string{"office:guest"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	for _, key := range []string{"healthcheck", "office:7", "office:guest", "user:42"} {
		d, err := t.Allow(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, d.Allowed, d.Source)
	}
	// Output:
	// healthcheck true listed
	// office:7 true listed
	// office:guest false listed
	// user:42 true local
}

// listed is a Throttler with lists, and the backend that it must not ask.
func listed(t *testing.T) (*throttler.Throttler, *spy, *notes) {
	b, book := newSpy(t, nil), &notes{}
	return throttlertesting.New(t, throttler.Config{
		Backend: b, Policy: throttlertesting.One(limit.PerHour(2)), Observer: book,
		Allow: []string{"good", "friend:*", "both"}, Deny: []string{"bad", "friend:false*", "both", "foe:*"},
	}), b, book
}

func TestLists(t *testing.T) {
	t.Parallel()
	th, b, book := listed(t)
	for key, allowed := range map[string]bool{
		"good": true, "friend:": true, "friend:1": true, "friend:fals": true,
		"bad": false, "both": false, "friend:false": false, "friend:false2": false, "foe:": false, "foe:friend:1": false,
	} {
		for name, ask := range map[string]func() (throttler.Decision, error){
			"allow": func() (throttler.Decision, error) { return th.AllowN(t.Context(), key, 1000) }, // more than fits
			"peek":  func() (throttler.Decision, error) { return th.Peek(t.Context(), key) },
			"all":   func() (throttler.Decision, error) { return th.AllowAll(t.Context(), []string{key, key}, 1000) },
		} {
			d, err := ask()
			if err != nil || d.Allowed != allowed || d.Source != throttler.Listed || d.Guarantee != throttler.Exact {
				t.Fatalf("%s %s: %+v, %v, want allowed %v", name, key, d, err, allowed)
			}
			if wait := d.RetryAfter; (wait == limit.Never) == allowed || (wait == 0) != allowed || d.At.IsZero() {
				t.Errorf("%s %s: retry after %s, decided at %s", name, key, wait, d.At)
			}
			for s := range d.All() {
				t.Errorf("%s %s: limit %v was asked", name, key, s)
			}
		}
		if last := book.ended[len(book.ended)-1]; last.Decision.Source != throttler.Listed || last.Policy.Name != "test" {
			t.Errorf("%s: observed %+v", key, last)
		}
	}
	if calls := b.calls.Load(); calls != 0 {
		t.Errorf("%d calls to the backend for keys on lists, want none", calls)
	}
	for _, key := range []string{"goodly", "friend", "ba", "fo"} {
		if d := throttlertesting.Allow(t, th, key); d.Source != throttler.Local {
			t.Errorf("%s: decided by %v, and is on no list", key, d.Source)
		}
	}
	if calls := b.calls.Load(); calls != 4 {
		t.Errorf("%d calls to the backend, want 4", calls)
	}
}

// A cost that is none, and a Throttler that is closed, are the matter of a listed key, too.
func TestListsRefuseBadInput(t *testing.T) {
	t.Parallel()
	th, _, _ := listed(t)
	for _, key := range []string{"good", "bad"} {
		for _, cost := range []int64{0, -1, limit.MaxCount + 1} {
			d, err := th.AllowN(t.Context(), key, cost)
			if got := fields(err); d.Allowed || !slices.Equal(got, []string{"cost"}) {
				t.Errorf("cost %d: %+v, %v", cost, d, err)
			}
		}
	}
	if err := th.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err := th.Allow(t.Context(), "good"); d.Allowed || !errors.Is(err, throttler.ErrClosed) {
		t.Errorf("closed: %+v, %v", d, err)
	}
}

func TestListsInReservations(t *testing.T) {
	t.Parallel()
	th, b, _ := listed(t)
	r, err := th.Reserve(t.Context(), "good", 5)
	if err != nil || !r.Decision().Allowed {
		t.Fatal(r, err)
	}
	if err := r.Settle(t.Context(), 6); err != nil {
		t.Error(err)
	}
	if err := r.Cancel(t.Context()); !errors.Is(err, throttler.ErrSettled) {
		t.Errorf("a second time: %v, want ErrSettled", err)
	}
	if calls := b.calls.Load(); calls != 0 {
		t.Errorf("%d calls to the backend, want none", calls)
	}
	if d, err := th.Wait(t.Context(), "bad", 1); d.Allowed || !errors.Is(err, throttler.ErrDenyListed) {
		t.Errorf("Wait = %+v, %v, want ErrDenyListed", d, err)
	}
}

// A key on the allow list is not the one that has the least left.
func TestListsInAllowAll(t *testing.T) {
	t.Parallel()
	th, _, _ := listed(t)
	for _, keys := range [][]string{{"good", "k"}, {"k", "good"}} {
		d, err := th.AllowAll(t.Context(), keys, 1)
		if err != nil || !d.Allowed || d.Source != throttler.Local {
			t.Errorf("%q: %+v, %v, want what is left of k", keys, d, err)
		}
	}
	if left := remaining(t, th, "k"); left != 0 {
		t.Errorf("%d left, want 0", left)
	}
	if d, err := th.AllowAll(t.Context(), []string{"other", "bad"}, 1); err != nil || d.Allowed || d.Source != throttler.Listed {
		t.Errorf("%+v, %v, want a denial by the list", d, err)
	}
	if left := remaining(t, th, "other"); left != 2 {
		t.Errorf("%d left of a key that was given back, want 2", left)
	}
}

func TestListsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := throttler.New(throttler.Config{Policy: throttlertesting.One(limit.PerHour(1)), Allow: []string{"secret", ""}, Deny: []string{""}})
	if got, want := fields(err), []string{"Allow: entry 2", "Deny: entry 1"}; !slices.Equal(got, want) {
		t.Errorf("fields %q, want %q", got, want)
	}
}

func BenchmarkLists(b *testing.B) {
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("tenant:%d", i), fmt.Sprintf("network:%d:*", i))
	}
	for _, key := range []string{"tenant:500", "network:500:9", "user:42"} {
		th := throttlertesting.New(b, throttler.Config{Policy: throttlertesting.One(limit.PerDay(1 << 40)), Allow: many, Deny: []string{"x*"}})
		b.Run(key, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := th.Allow(b.Context(), key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Who is denied can't take from others: their keys are not charged, even for a moment.
func TestListsDenyBeforeOthersAreCharged(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{{"other", "bad"}, {"bad", "other"}, {"other", "bad", "good"}} {
		th, b, book := listed(t)
		d, err := th.AllowAll(t.Context(), keys, 1)
		if err != nil || d.Allowed || d.Source != throttler.Listed || d.RetryAfter != limit.Never {
			t.Errorf("%q: %+v, %v, want a denial by the list", keys, d, err)
		}
		r, err := th.ReserveAll(t.Context(), keys, 1)
		if err != nil || r.Decision().Allowed || r.Decision().Source != throttler.Listed || r.Cancel(t.Context()) != nil {
			t.Errorf("%q: %+v, %v, want a denial by the list", keys, r, err)
		}
		if calls := b.calls.Load(); calls != 0 || len(book.ended) != 2 {
			t.Errorf("%q: %d calls to the backend and %d decisions observed, want none and 2", keys, calls, len(book.ended))
		}
		if _, err := th.AllowAll(t.Context(), append(keys, ""), 1); fmt.Sprint(fields(err)) != "[key]" {
			t.Errorf("%q beside an empty key: %v", keys, err)
		}
	}
}
