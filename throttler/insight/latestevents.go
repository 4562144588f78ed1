package insight

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// NearKey is a key that had little left of a limit whose window still runs.
type NearKey struct {
	Key       string      `json:"key"` // hashed by Recorder.KeyHash, unless asked for in clear
	Policy    string      `json:"policy"`
	Limit     limit.Limit `json:"limit"`
	Remaining int64       `json:"remaining"` // at the time of the event; less may be left now
	ResetAt   time.Time   `json:"reset_at"`
}

const (
	maxLatestNotices = 1000
	maxLatestBytes   = 1 << 18 // of all keys
)

// latestEvents keeps notices until their windows end, or others take their place.
type latestEvents struct {
	mu    sync.Mutex       // guards what follows
	kept  []NearLimitEvent // the oldest first
	bytes int              // of their keys
}

func (l *latestEvents) keep(n NearLimitEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, n)
	l.bytes += len(n.Key)
	for len(l.kept) > maxLatestNotices || l.bytes > maxLatestBytes {
		l.bytes -= len(l.kept[0].Key)
		l.kept[0] = NearLimitEvent{}
		l.kept = l.kept[1:]
	}
}

// running returns the notices of windows that still run at that time, at most max, the latest first.
func (l *latestEvents) running(now time.Time, max int) []NearLimitEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes = 0
	l.kept = slices.DeleteFunc(l.kept, func(n NearLimitEvent) bool { return !n.Status.ResetAt.After(now) })
	for i := range l.kept {
		l.bytes += len(l.kept[i].Key)
	}
	latest := slices.Clone(l.kept[len(l.kept)-min(max, len(l.kept)):])
	slices.Reverse(latest)
	return latest
}

// list returns the latest notices of windows that still run, at most max, the latest first, with their keys converted by show.
func (n *NearLimit) list(max int, show func(key string) string) []NearKey {
	if n == nil || max <= 0 {
		return nil
	}
	var all []NearKey
	for _, its := range n.latest.running(time.Now(), max) {
		all = append(all, NearKey{
			Key: show(its.Key), Policy: its.Policy.Name, Limit: its.Status.Limit, Remaining: its.Status.Remaining, ResetAt: its.Status.ResetAt,
		})
	}
	return all
}
