package redisbackend

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	logEvery    = 10 * time.Second // for each kind of line
	maxLogKinds = 256              // go-redis has fewer
)

// LogTo has go-redis log to logger what it prints to stderr otherwise, such as failed dials. If logger is nil, it is discarded:
// calls return the same errors. This is go-redis' one logger, as set by redis.SetLogger: it concerns all clients of the process,
// and the last call wins. Give it the logger of throttler.Config.
//
// Lines have the level Warn, the message "redis client" and what go-redis says as the attribute detail: addresses and errors, no
// keys. Of each kind, one is logged in ten seconds, and the next one says in the attribute suppressed how many were not.
func LogTo(logger *slog.Logger) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	redis.SetLogger(&clientLog{logger: logger, kinds: map[string]*logKind{}})
}

// clientLog is a logger of go-redis.
type clientLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[string]*logKind // by the format; guarded by mu
}

type logKind struct {
	next       time.Time // when the next line may be logged
	suppressed int
}

func (l *clientLog) Printf(ctx context.Context, format string, args ...any) {
	suppressed, ok := l.admit(format, time.Now())
	if !ok || !l.logger.Enabled(ctx, slog.LevelWarn) {
		return
	}
	attrs := []slog.Attr{slog.String("detail", fmt.Sprintf(format, args...))}
	if suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", suppressed))
	}
	l.logger.LogAttrs(ctx, slog.LevelWarn, "redis client", attrs...)
}

// admit reports whether a line may be logged now, and how many of its kind were suppressed before.
func (l *clientLog) admit(format string, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kind := l.kinds[format]
	if kind == nil {
		if len(l.kinds) >= maxLogKinds { // some formats are finished texts
			clear(l.kinds)
		}
		kind = new(logKind)
		l.kinds[format] = kind
	}
	if now.Before(kind.next) {
		kind.suppressed++
		return 0, false
	}
	suppressed, kind.suppressed, kind.next = kind.suppressed, 0, now.Add(logEvery)
	return suppressed, true
}
