package lease

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/testclock"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// stater is a Memory whose replies carry state.
type stater struct{ *memory.Memory }

func (s stater) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := s.Memory.Take(ctx, req)
	return s.with(ctx, req, r, err)
}

func (s stater) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	r, err := s.Memory.Charge(ctx, req, mark)
	return s.with(ctx, req, r, err)
}

func (s stater) with(ctx context.Context, req backend.Request, r backend.Result, err error) (backend.Result, error) {
	if err == nil {
		var snapshot backend.Snapshot
		snapshot, err = s.Load(ctx, req)
		r.State = snapshot.State
	}
	return r, err
}

// TestCreditAfterAClockStep: a forward step of the host's wall clock begins no window on credit, nor ends what is owed to one.
func TestCreditAfterAClockStep(t *testing.T) {
	inner, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ls, err := New(stater{inner}, Config{Batch: -1, Slack: 0.5, Processes: 2, Flush: time.Minute, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer ls.Close()
	clock := newSpanClock()
	var step time.Duration
	ls.clock = func() int64 {
		clock.compare(testclock.MonotonicAhead(time.Now().Add(step), -step))
		return int64(time.Since(clock.start)) + clock.extra.Load()
	}
	ls.jumped = clock.extra.Load
	req := backend.Request{Key: "key", Policy: &limit.Policy{Limits: []limit.Limit{limit.Fixed(100, 24*time.Hour).Aligned()}}, Cost: 20}
	var sources []backend.Source
	for range 2 {
		for range 2 {
			r, err := ls.Take(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, r.Source)
		}
		step += 24 * time.Hour
	}
	if sources[1] != backend.OnCredit || sources[2] == backend.OnCredit {
		t.Errorf("decided by %s, then %s", sources[1], sources[2])
	}
	if s := ls.Stats(); s.LostCharges != 0 {
		t.Errorf("%+v", s)
	}
}
