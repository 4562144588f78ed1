package envoylimit_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/throttler"
)

// With leases few requests of a hot key are calls, and a local view denies an exhausted key without one.
func TestLeases(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file  string
		lease *lease.Config
		most  int64 // calls of 400 requests
	}{
		"none":       {"domain: web\n", nil, 400},
		"leases":     {"domain: web\nsluice: {lease: {processes: 1}}\n", nil, 100},
		"local view": {"domain: web\n", &lease.Config{Batch: -1}, 220},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisConfig(nil))
			c, _ := open(t, closed(t, b, err), tt.file+"descriptors: [{key: key, rate_limit: {unit: year, requests_per_unit: 200}}]", envoylimit.Config{Lease: tt.lease})
			server.ResetStats(t)
			admitted := 0
			for range 400 {
				if c.ask(desc("key=a")).GetOverallCode() == isOK {
					admitted++
				}
			}
			if calls := server.Stats(t)["evalsha"]; admitted != 200 || calls > tt.most || name == "none" && calls < 400 {
				t.Errorf("%d admitted in %d calls", admitted, calls)
			}
		})
	}
}

// onCredit counts decisions by credit.
type onCredit struct{ atomic.Int64 }

func (*onCredit) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

func (o *onCredit) End(_ context.Context, e *throttler.Event) {
	if e.Decision.Source == throttler.OnCredit {
		o.Add(1)
	}
}

// A domain whose file has a slack admits on credit, at most Max and its share above Max.
func TestCredit(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisConfig(nil))
	var seen onCredit
	c, _ := open(t, closed(t, b, err), "domain: web\nsluice: {lease: {processes: 1, slack: 0.5}}\n"+
		"descriptors: [{key: key, rate_limit: {unit: year, requests_per_unit: 200}}]", envoylimit.Config{Throttler: throttler.Config{Observer: &seen}})
	admitted := 0
	for range 400 {
		if c.ask(desc("key=a")).GetOverallCode() == isOK {
			admitted++
		}
	}
	if admitted < 200 || admitted > 300 || seen.Load() < 50 {
		t.Errorf("%d admitted, %d of them on credit", admitted, seen.Load())
	}
}

// With leases, too, hits that were charged are given back, and no more is admitted than the limit and those.
func TestLeasesGiveBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "sluice: {sliding: {precision: 1m}}", "sluice: {bucket: {burst: 300}}"} {
		c, _ := open(t, backends["memory"](t, newClock()), "domain: web\nsluice: {lease: {processes: 1, batch: 16}}\n"+
			"descriptors:\n  - key: key\n    rate_limit: {unit: hour, requests_per_unit: 300}\n    "+kind+"\n", envoylimit.Config{})
		admitted, given := 0, 0
		for range 5 {
			for range 20 {
				if c.ask(desc("key=a")).GetOverallCode() == isOK {
					admitted++
				}
			}
			c.ask(desc("key=a", giveBack(20)))
			given += 20
		}
		for range 500 {
			if c.ask(desc("key=a")).GetOverallCode() == isOK {
				admitted++
			}
		}
		if admitted > 300+given || admitted < 300+given-20 {
			t.Errorf("%q: %d admitted, and %d given back", kind, admitted, given)
		}
	}
}
