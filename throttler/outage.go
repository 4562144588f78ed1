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

// OutageObserver is an Observer that is called when an outage is logged, and when it is over.
type OutageObserver interface {
	Outage(ctx context.Context, o Outage)
}

// Outage is a time in which the failure policy decides requests. An OutageObserver gets it when the Logger does: at most
// once a minute for each kind of cause, and every five seconds for a cause that only a person can fix. It gets it once more
// when the outage is over: with the first verdict of the backend after five seconds without a fallback, so an outage of some
// servers, while others answer, is one outage.
type Outage struct {
	Policy  *limit.Policy // of the request that met it, or found it over; not to be changed or kept
	Failure FailurePolicy // what decides during the outage
	Cause   error         // the backend's error; nil once the outage is over

	// Over is whether the outage is over. Then Duration is the time from the first fallback to the last, and Requests is how
	// many requests the failure policy decided. Otherwise both are 0.
	Over     bool
	Duration time.Duration
	Requests int64
}

const outageOver = 5 * time.Second

// outages tracks the current outage.
type outages struct {
	on   atomic.Bool  // read by every decision
	last atomic.Int64 // time of the last request without a verdict, in nanoseconds since Throttler.born

	mu       sync.Mutex    // guards what follows, and is held while on changes
	first    time.Duration // since Throttler.born
	requests int64
	logged   bool
}

// outage counts a request that the failure policy decides, and reports the outage to the logger and the observer.
func (t *Throttler) outage(ctx context.Context, policy *limit.Policy, cause error) {
	now := t.now()
	logged := t.log.warn(ctx, now, "sluice: no verdict from the backend, the failure policy decides", cause,
		slog.String("failure_policy", t.cfg.Failure.String()), slog.Int("processes", t.cfg.Processes))
	t.outages.record(now, logged)
	if logged && t.outageObserver != nil {
		t.outageObserver.Outage(ctx, Outage{Policy: policy, Failure: t.cfg.Failure, Cause: cause})
	}
}

func (o *outages) record(now time.Duration, logged bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.on.Load() {
		o.first, o.requests, o.logged = now, 0, false
		o.on.Store(true)
	}
	o.requests++
	o.logged = o.logged || logged
	o.last.Store(max(o.last.Load(), int64(now))) // another caller may have read the clock later
}

// endOutage ends the outage if a verdict shows that it is over. Verdicts of this process alone show nothing about the backend.
func (t *Throttler) endOutage(ctx context.Context, policy *limit.Policy, by Source) {
	o, now := &t.outages, t.now()
	if by == Leased || by == OnCredit || by == LocalDeny || by == Replica || now-time.Duration(o.last.Load()) < outageOver {
		return
	}
	duration, requests, logged := o.end(now)
	if !logged {
		return
	}
	t.log.logger.LogAttrs(ctx, slog.LevelInfo, "sluice: the backend decides again",
		slog.Duration("outage", duration), slog.Int64("requests", requests))
	if t.outageObserver != nil {
		t.outageObserver.Outage(ctx, Outage{
			Policy: policy, Failure: t.cfg.Failure, Over: true, Duration: duration, Requests: requests,
		})
	}
}

// end ends the outage, and reports whether it was logged.
func (o *outages) end(now time.Duration) (duration time.Duration, requests int64, logged bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := time.Duration(o.last.Load())
	if !o.on.Load() || now-last < outageOver {
		return 0, 0, false // another caller was faster, or it goes on
	}
	o.on.Store(false)
	return last - o.first, o.requests, o.logged
}

// warnings keep a long outage from filling the log.
type warnings struct {
	logger *slog.Logger
	last   [8]atomic.Int64 // by backend.Kind: time of the last record, in nanoseconds since Throttler.born; 0 for none
}

const (
	logEvery   = time.Minute
	errorEvery = 5 * time.Second // of what only a person can fix

	misconfigured = "sluice: misconfigured: "
)

// warn reports whether it logged. Now is the time since Throttler.born: the wall clock may step back, and the outage would be
// silent for as long.
func (w *warnings) warn(ctx context.Context, now time.Duration, message string, cause error, attrs ...slog.Attr) bool {
	var e *backend.Error
	kind, level, every := backend.Kind(0), slog.LevelWarn, logEvery
	if errors.As(cause, &e) {
		if kind = e.Kind; kind == backend.Misconfigured || kind == backend.Corrupt { // waiting doesn't help
			message, level, every = misconfigured+strings.TrimPrefix(message, "sluice: "), slog.LevelError, errorEvery
		}
	}
	last := &w.last[int(kind)%len(w.last)]
	if before := last.Load(); (before == 0 || now-time.Duration(before) >= every) && last.CompareAndSwap(before, int64(max(now, 1))) {
		w.logger.LogAttrs(ctx, level, message, append(attrs, slog.Any("error", cause))...)
		return true
	}
	return false
}
