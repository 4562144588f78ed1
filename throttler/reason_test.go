package throttler_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// A process without the Dual of a migration can't follow a key that has moved: the outage has a word of its own.
func TestReasonOfAMovedKey(t *testing.T) {
	t.Parallel()
	counts, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{limit.Sliding(10, time.Hour, time.Minute)}}
	move := state.Move{Mover: state.Migration, Version: 3, TTL: time.Hour}
	if _, err := backend.Seal(t.Context(), counts, backend.Request{Key: "k", Policy: &policy, Move: move}); err != nil {
		t.Fatal(err)
	}
	th, err := throttler.New(throttler.Config{Backend: counts, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	d, err := th.Allow(t.Context(), "k")
	if got := throttler.Reason(d.Cause); err != nil || d.Source != throttler.Fallback || got != "moved" {
		t.Errorf("%v, %v: reason %q, want the fallback's because the key has moved", d, err, got)
	}
	// What is left here is out of date, and must not be shown as exact.
	d, err = th.Peek(t.Context(), "k")
	if got := throttler.Reason(d.Cause); err != nil || d.Guarantee != throttler.Bounded || got != "moved" {
		t.Errorf("peek: %v, %v: reason %q, want bounded because the key has moved", d, err, got)
	}
	if used, err := th.Usage(t.Context(), "k", time.Minute); throttler.Reason(err) != "moved" {
		t.Errorf("usage: %d, %v, want an error because the key has moved", used, err)
	}
}

// stray loads what is left of a key where it was, as a router that doesn't know the key's new owner.
type stray struct{ *memory.Memory }

func (s stray) Load(context.Context, backend.Request) (backend.Snapshot, error) {
	moved := &state.MovedError{Mover: state.Topology, Version: 3}
	return backend.Snapshot{Now: s.NowMicros(), Lacks: errors.Join(backend.ErrNotHandedOver, moved)}, nil
}

// Usage has no Guarantee, so it fails where counts are out of date.
func TestUsageOfAMovedKey(t *testing.T) {
	t.Parallel()
	counts, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{limit.Sliding(10, time.Hour, time.Minute)}}
	th, err := throttler.New(throttler.Config{Backend: stray{counts}, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	used, err := th.Usage(t.Context(), "k", time.Minute)
	if moved, ok := errors.AsType[*state.MovedError](err); !ok || moved.Version != 3 {
		t.Errorf("%d, %v, want an error because the key has moved", used, err)
	}
}

// A loss of counts matters more than what a configuration asks for.
func TestReasonOfALoss(t *testing.T) {
	t.Parallel()
	for _, asked := range []error{backend.ErrBucketLeased, backend.ErrOnCredit} {
		for word, loss := range map[string]error{"counts_lost": backend.ErrCountsLost, "evicted": backend.ErrEvicted} {
			if got := throttler.Reason(errors.Join(asked, loss)); got != word {
				t.Errorf("%v and %v: %q", asked, loss, got)
			}
		}
	}
}

// docs/telemetry.md explains each word that Reason returns.
func TestReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, m := range regexp.MustCompile(`(?:return |, )"([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		words = append(words, m[1])
	}
	if len(words) < 12 {
		t.Errorf("%d words in reason.go: %q", len(words), words)
	}
	for k := backend.Unavailable; k.String() != backend.Kind(0).String(); k++ {
		words = append(words, k.String())
	}
	for _, word := range words {
		if !strings.Contains(string(docs), "\n| `"+word+"` | ") {
			t.Errorf("docs/telemetry.md doesn't explain %s", word)
		}
	}
}
