package throttler

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// OutageObserver is an Observer that is told of outages whenever the Logger is: at most once a minute for each kind of
// cause, and every five seconds of one that only a person can fix. Each decision without the backend is told of by DecisionEnd: its Source is Fallback.
type OutageObserver interface {
	Outage(ctx context.Context, data OutageData)
}

// OutageData is an outage.
type OutageData struct {
	Policy  *limit.Policy // of the request that met it; not to be changed or kept
	Failure FailurePolicy // what decides meanwhile
	Cause   error         // the backend's error
}

// OutageEndObserver is an Observer that is told when an outage that the Logger was told of is over: by the first verdict of
// the backend after five seconds in which no request was without one. So an outage of some of its servers, when others go
// on to answer, is one outage and not many.
type OutageEndObserver interface {
	OutageEnd(ctx context.Context, data OutageEndData)
}

// OutageEndData is an outage that is over.
type OutageEndData struct {
	Policy   *limit.Policy // of the request that found it over; not to be changed or kept
	Duration time.Duration // from the first request without a verdict to the last one
	Requests int64         // that the failure policy decided
}

const outageOver = 5 * time.Second

// outages is the outage that is going on.
type outages struct {
	on   atomic.Bool  // what every decision looks at
	last atomic.Int64 // when the last request was without a verdict, in nanoseconds since born

	mu       sync.Mutex // guards what follows, and held while on changes
	born     time.Time
	first    time.Duration // since born
	requests int64
	told     bool
}

// outage takes note of a request that the failure policy decides, and tells the logger and the observer.
func (t *Throttler) outage(ctx context.Context, policy *limit.Policy, cause error) {
	told := t.log.warn(ctx, "sluice: no verdict from the backend, the failure policy decides", cause,
		slog.String("failure_policy", t.cfg.Failure.String()), slog.Int("processes", t.cfg.Processes))
	t.outages.note(told)
	if told && t.observers.outages != nil {
		t.observers.outages.Outage(ctx, OutageData{Policy: policy, Failure: t.cfg.Failure, Cause: cause})
	}
}

func (o *outages) note(told bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Since(o.born)
	if !o.on.Load() {
		o.first, o.requests, o.told = now, 0, false
		o.on.Store(true)
	}
	o.requests++
	o.told = o.told || told
	o.last.Store(int64(now))
}

// endOutage looks whether a verdict means that the outage is over. This process's own say so nothing about the backend.
func (t *Throttler) endOutage(ctx context.Context, policy *limit.Policy, by Source) {
	o := &t.outages
	if by == Leased || by == LocalDeny || by == Replica || time.Since(o.born)-time.Duration(o.last.Load()) < outageOver {
		return
	}
	data, told := o.end()
	if !told {
		return
	}
	data.Policy = policy
	t.log.logger.LogAttrs(ctx, slog.LevelInfo, "sluice: the backend decides again",
		slog.Duration("outage", data.Duration), slog.Int64("requests", data.Requests))
	if t.observers.outageEnds != nil {
		t.observers.outageEnds.OutageEnd(ctx, data)
	}
}

// end ends the outage, and reports whether it was told of.
func (o *outages) end() (data OutageEndData, told bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := time.Duration(o.last.Load())
	if !o.on.Load() || time.Since(o.born)-last < outageOver {
		return data, false // another caller was faster, or it goes on
	}
	o.on.Store(false)
	return OutageEndData{Duration: last - o.first, Requests: o.requests}, o.told
}

// warnings keep a long outage from filling the log.
type warnings struct {
	logger *slog.Logger
	last   [8]atomic.Int64 // by backend.Kind: when it was logged, Unix seconds
}

const (
	logEvery   = 60 // seconds
	errorEvery = 5  // seconds, of what only a person can fix

	fixMe = "sluice: misconfigured, a person must fix it: "
)

// warn reports whether it said anything.
func (w *warnings) warn(ctx context.Context, message string, cause error, attrs ...slog.Attr) bool {
	var e *backend.Error
	kind, level, every := backend.Kind(0), slog.LevelWarn, int64(logEvery)
	if errors.As(cause, &e) {
		if kind = e.Kind; kind == backend.Misconfigured || kind == backend.Corrupt { // waiting helps nobody
			message, level, every = fixMe+strings.TrimPrefix(message, "sluice: "), slog.LevelError, errorEvery
		}
	}
	last, now := &w.last[int(kind)%len(w.last)], time.Now().Unix()
	if before := last.Load(); now-before >= every && last.CompareAndSwap(before, now) {
		w.logger.LogAttrs(ctx, level, message, append(attrs, slog.Any("error", cause))...)
		return true
	}
	return false
}
