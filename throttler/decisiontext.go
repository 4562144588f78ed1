package throttler

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// String describes the decision for people, without the key:
//
//	allowed: 6 left of 10/1m, full in 42s; primary, exact
//	denied: 0 left of 10/1m, retry after 42s; fallback, bounded: unavailable
func (d Decision) String() string {
	var b strings.Builder
	if d.Allowed {
		b.WriteString("allowed")
	} else {
		b.WriteString("denied")
	}
	separator := ": "
	part := func(format string, args ...any) {
		b.WriteString(separator)
		fmt.Fprintf(&b, format, args...)
		separator = ", "
	}
	switch {
	case d.Limit.IsCounter():
		part("counted by %s", d.Limit)
	case d.limited():
		part("%d left of %s", d.Remaining, d.Limit)
	}
	switch {
	case !d.Allowed && d.RetryAfter != 0:
		part("retry after %s", d.retryAfter())
	case d.limited() && !d.ResetAt.IsZero():
		part("full in %s", shortDuration(d.ResetAt.Sub(d.At)))
	}
	fmt.Fprintf(&b, "; %s, %s", d.Source, d.Guarantee)
	if cause := Reason(d.Cause); cause != "" {
		b.WriteString(": " + cause)
	}
	return b.String()
}

// LogValue implements [slog.LogValuer], with the names of [Decision.MarshalJSON] for all but the single limits. It has no key.
func (d Decision) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs, slog.Bool("allowed", d.Allowed))
	if d.limited() {
		attrs = append(attrs, slog.String("limit", d.Limit.String()), slog.Int64("remaining", d.Remaining))
	}
	if !d.ResetAt.IsZero() {
		attrs = append(attrs, slog.Time("reset_at", d.ResetAt))
	}
	if d.RetryAfter != 0 {
		attrs = append(attrs, slog.String("retry_after", d.retryAfter()))
	}
	attrs = append(attrs, slog.String("source", d.Source.String()), slog.String("guarantee", d.Guarantee.String()))
	if cause := Reason(d.Cause); cause != "" {
		attrs = append(attrs, slog.String("cause", cause))
	}
	return slog.GroupValue(attrs...)
}

type decisionJSON struct {
	Allowed    bool         `json:"allowed"`
	Limit      string       `json:"limit,omitempty"`
	Remaining  *int64       `json:"remaining,omitempty"`
	ResetAt    time.Time    `json:"reset_at,omitzero"`
	At         time.Time    `json:"at,omitzero"`
	RetryAfter string       `json:"retry_after,omitempty"`
	Source     string       `json:"source"`
	Guarantee  string       `json:"guarantee"`
	Cause      string       `json:"cause,omitempty"`
	Limits     []statusJSON `json:"limits,omitempty"`
}

type statusJSON struct {
	Limit      string    `json:"limit"`
	Remaining  int64     `json:"remaining"`
	ResetAt    time.Time `json:"reset_at"`
	RetryAfter string    `json:"retry_after,omitempty"`
}

// MarshalJSON writes the decision for people and logs. It has no key:
//
//	{"allowed": false, "limit": "10/1m", "remaining": 0, "reset_at": "2026-01-02T03:05:00Z", "at": "2026-01-02T03:04:18Z",
//	 "retry_after": "42s", "source": "primary", "guarantee": "exact", "limits": [...]}
//
// Times are in UTC. The retry_after is a duration as [time.ParseDuration] reads it, or "never"; it is left out where the request
// was allowed. The cause is that of [Reason]. The limits are those of [Decision.All], where the policy has several. What a
// decision lacks is left out: limit and remaining for keys on a list and where no limit decided.
func (d Decision) MarshalJSON() ([]byte, error) {
	j := decisionJSON{
		Allowed: d.Allowed, ResetAt: inUTC(d.ResetAt), At: inUTC(d.At), RetryAfter: d.retryAfter(),
		Source: d.Source.String(), Guarantee: d.Guarantee.String(), Cause: Reason(d.Cause),
	}
	if d.limited() {
		j.Limit, j.Remaining = d.Limit.String(), &d.Remaining
	}
	for s := range d.All() {
		j.Limits = append(j.Limits, statusJSON{s.Limit.String(), s.Remaining, inUTC(s.ResetAt), retryAfterText(s.RetryAfter)})
	}
	if len(j.Limits) == 1 {
		j.Limits = nil
	}
	return json.Marshal(j)
}

// limited reports whether a limit stands in the decision.
func (d *Decision) limited() bool { return d.Limit != limit.Limit{} }

func (d *Decision) retryAfter() string { return retryAfterText(d.RetryAfter) }

func retryAfterText(d time.Duration) string {
	switch d {
	case 0:
		return ""
	case limit.Never:
		return "never"
	}
	return shortDuration(d)
}

// shortDuration rounds up: a request repeated after the rounded time must not come too early.
func shortDuration(d time.Duration) string {
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return d.String()
}

// inUTC keeps the zero time.
func inUTC(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
