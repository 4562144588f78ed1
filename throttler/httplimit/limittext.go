package httplimit

import (
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
	length string // of denial
}

// limitTexts keeps the texts of limits. Its zero value is empty.
type limitTexts struct {
	known atomic.Pointer[map[limit.Limit]*limitText] // the map never changes
	mu    sync.Mutex                                 // held while known is replaced
}

// maxLimitTexts bounds what PolicyFor can make a Middleware keep. The texts of further limits are made for each request.
const maxLimitTexts = 512

func (ts *limitTexts) of(l *limit.Limit, cfg *Config) *limitText {
	known := ts.known.Load()
	if known != nil {
		if t, ok := (*known)[*l]; ok {
			return t
		}
		if len(*known) >= maxLimitTexts {
			return newLimitText(l, cfg)
		}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, all := newLimitText(l, cfg), make(map[limit.Limit]*limitText)
	if known = ts.known.Load(); known != nil {
		for other, text := range *known {
			all[other] = text
		}
	}
	all[*l] = t
	ts.known.Store(&all)
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
	t.length = strconv.Itoa(len(t.denial))
	return t
}
