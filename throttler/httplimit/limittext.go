package httplimit

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/limitview"
	"github.com/sluice-go/sluice/limit"
)

// limitText is what header fields and bodies say of a limit at all times.
type limitText struct {
	limit  limit.Limit
	name   string
	hidden bool   // a counter, or see Config.Hide
	quota  string // in decimal
	member string // of RateLimit-Policy
	denial []byte // the body if this limit alone denies
}

// limitTexts keeps the texts of limits. Its zero value is empty.
type limitTexts struct {
	known atomic.Pointer[knownTexts]
	mu    sync.Mutex // held while known is replaced
}

// knownTexts never change.
type knownTexts struct {
	few []*limitText // the first of all: to compare a few limits takes a third of the time of a hash of one
	all map[limit.Limit]*limitText
}

// maxLimitTexts bounds what PolicyFor can make a Middleware keep. The texts of further limits are made for each request.
const maxLimitTexts = 512

func (ts *limitTexts) of(l *limit.Limit, cfg *Config) *limitText {
	known := ts.known.Load()
	if known != nil {
		for _, t := range known.few {
			if t.limit == *l {
				return t
			}
		}
		if t, ok := known.all[*l]; ok {
			return t
		}
		if len(known.all) >= maxLimitTexts {
			return newLimitText(l, cfg)
		}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, more := newLimitText(l, cfg), &knownTexts{all: make(map[limit.Limit]*limitText)}
	if known = ts.known.Load(); known != nil {
		more.few = known.few
		maps.Copy(more.all, known.all)
	}
	if more.all[*l] = t; len(more.few) < 4 {
		more.few = append(slices.Clip(more.few), t)
	}
	ts.known.Store(more)
	return t
}

func newLimitText(l *limit.Limit, cfg *Config) *limitText {
	t := &limitText{limit: *l, name: limitview.Name(l), quota: strconv.FormatInt(l.Quota(), 10)}
	t.hidden = l.IsCounter() || slices.Contains(cfg.Hide, t.name)
	b := appendMember(nil, t.name, ";q=", l.Quota(), ";w=", limitview.RoundUp(limitview.Window(l), time.Second))
	if cfg.QuotaUnit != "" {
		b = append(b, `;qu="`...)
		b = append(b, cfg.QuotaUnit...)
		b = append(b, '"')
	}
	t.member = string(b)
	p := exceeded
	p.violated = []string{t.name}
	t.denial = p.json()
	return t
}
