package throttler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// TestDecisionText: a decision names what decided in words, and never the key, in a text, a log and JSON alike.
func TestDecisionText(t *testing.T) {
	t.Parallel()
	const key = "user:42:secret"
	clock := throttlertest.NewClock()
	failing := newSpy(t, nil)
	failing.failWith(func(string) error {
		return &backend.Error{Op: "take", Kind: backend.Unavailable, Err: errors.New("down")}
	})
	two := limit.Policy{Name: "two", Limits: []limit.Limit{limit.PerMinute(2).Aligned().Named("short"), limit.PerDay(9).Aligned()}}
	take := func(cfg throttler.Config, cost int64, times int) throttler.Decision {
		t.Helper()
		if cfg.Backend == nil {
			cfg.Backend = throttlertesting.NewMemory(t, clock.Now)
		}
		th := throttlertesting.New(t, cfg)
		var d throttler.Decision
		for range times {
			d, _ = th.AllowN(t.Context(), key, cost)
		}
		return d
	}
	clock.Advance(time.Unix(1_767_323_040, 0).Sub(clock.Now()) + 18*time.Second) // 2026-01-02T03:04:18Z
	for name, test := range map[string]struct {
		d               throttler.Decision
		text, log, json string
	}{
		"allowed": {
			take(throttler.Config{Policy: two}, 1, 1),
			"allowed: 1 left of short=2/1m@aligned, full in 42s; local, exact",
			"allowed=true limit=short=2/1m@aligned remaining=1 reset_at=2026-01-02T03:05:00.000Z source=local guarantee=exact",
			`{"allowed":true,"limit":"short=2/1m@aligned","remaining":1,"reset_at":"2026-01-02T03:05:00Z","at":"2026-01-02T03:04:18Z",` +
				`"source":"local","guarantee":"exact","limits":[` +
				`{"limit":"short=2/1m@aligned","remaining":1,"reset_at":"2026-01-02T03:05:00Z"},` +
				`{"limit":"9/24h@aligned","remaining":8,"reset_at":"2026-01-03T00:00:00Z"}]}`,
		},
		"denied": {
			take(throttler.Config{Policy: throttlertesting.One(limit.PerMinute(2).Aligned())}, 1, 3),
			"denied: 0 left of 2/1m@aligned, retry after 42s; local, exact",
			"allowed=false limit=2/1m@aligned remaining=0 reset_at=2026-01-02T03:05:00.000Z retry_after=42s source=local guarantee=exact",
			`{"allowed":false,"limit":"2/1m@aligned","remaining":0,"reset_at":"2026-01-02T03:05:00Z","at":"2026-01-02T03:04:18Z",` +
				`"retry_after":"42s","source":"local","guarantee":"exact"}`,
		},
		"can never pass": {
			take(throttler.Config{Policy: throttlertesting.One(limit.PerMinute(2))}, 3, 1),
			"denied: 0 left of 2/1m, retry after never; unknown, exact",
			"allowed=false limit=2/1m remaining=0 retry_after=never source=unknown guarantee=exact",
			`{"allowed":false,"limit":"2/1m","remaining":0,"retry_after":"never","source":"unknown","guarantee":"exact"}`,
		},
	} {
		if got := fmt.Sprint(test.d); got != test.text {
			t.Errorf("%s: %s, want %s", name, got, test.text)
		}
		if got, err := json.Marshal(test.d); err != nil || string(got) != test.json {
			t.Errorf("%s: %s, %v, want %s", name, got, err, test.json)
		}
		if got := logged(test.d); got != test.log {
			t.Errorf("%s: logged %s, want %s", name, got, test.log)
		}
	}
	for name, test := range map[string]struct {
		d    throttler.Decision
		text string
	}{
		"zero":        {throttler.Decision{}, "denied; unknown, exact"},
		"allow list":  {take(throttler.Config{Policy: two, Allow: []string{key}}, 1, 1), "allowed; listed, exact"},
		"deny list":   {take(throttler.Config{Policy: two, Deny: []string{key}}, 1, 1), "denied: retry after never; listed, exact"},
		"outage":      {take(throttler.Config{Policy: two, Backend: failing, Failure: throttler.FailClosed}, 1, 1), "denied: 0 left of short=2/1m@aligned, retry after 1s; fallback, bounded: unavailable"},
		"microsecond": {throttler.Decision{RetryAfter: time.Second + time.Microsecond}, "denied: retry after 1.001s; unknown, exact"},
	} {
		if got := test.d.String(); got != test.text {
			t.Errorf("%s: %s, want %s", name, got, test.text)
		}
		data, err := json.Marshal(test.d)
		if err != nil || !json.Valid(data) {
			t.Errorf("%s: %s, %v", name, data, err)
		}
		if all := test.d.String() + logged(test.d) + string(data); strings.Contains(all, "secret") || strings.Contains(all, "user") {
			t.Errorf("%s: the key is in %s", name, all)
		}
	}
}

// logged is how a text log shows a decision.
func logged(d throttler.Decision) string {
	var b bytes.Buffer
	handler := slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case len(groups) == 0:
			return slog.Attr{}
		case a.Value.Kind() == slog.KindTime:
			a.Value = slog.TimeValue(a.Value.Time().UTC())
		}
		return a
	}})
	slog.New(handler).LogAttrs(context.Background(), slog.LevelInfo, "", slog.Any("d", d))
	text := strings.ReplaceAll(strings.TrimSpace(b.String()), "d.", "")
	return strings.ReplaceAll(text, `"`, "")
}
