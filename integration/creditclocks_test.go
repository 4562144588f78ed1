//go:build linux && amd64

package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

func init() { followClock = testserver.FollowHostClock }

// TestCreditHostClocks lets three processes owe in one window: the wall clock of the first is right, that of the second 26
// years behind, and that of the third is stepped, past the end of the window and back. Once more with Leases that judge by the
// wall clock, the run admits too much: so it would be noticed.
func TestCreditHostClocks(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	steps := []time.Duration{7 * time.Hour, 26 * time.Hour, -2 * time.Hour, 26 * time.Hour, -60 * time.Hour, 30 * time.Hour, 26 * year, -52 * year, 26*year + 25*time.Hour}
	l := limit.PerDay(6000).Aligned()
	for time.Until(time.Now().Truncate(l.Window).Add(l.Window)) < 2*patience {
		time.Sleep(time.Second) // the window must not end meanwhile
	}
	bound := lease.BoundError{Slack: 0.1, Processes: 3}
	play := func(byHost bool) (total, unpaid int64, onCredit int) {
		s := startRedis(t)
		groups, _ := groupsOf(s.addr)
		j := job{Groups: groups, Limit: l.String(), Slack: bound.Slack, Among: bound.Processes, Pause: 200 * time.Microsecond, ByHost: byHost}
		behind, stepped := testserver.NewHostClock(t), testserver.NewHostClock(t)
		behind.Step(t, -26*year)
		all := []*process{startChild(t, j)}
		for _, c := range []*testserver.HostClock{behind, stepped} {
			j.Clock = c.File()
			all = append(all, startChild(t, j))
		}
		sum := func() (sum int64) {
			for _, p := range all {
				n, _ := p.admitted(t)
				sum += n
			}
			return sum
		}
		for i, by := range steps {
			await(t, "a part is used", func() bool { return sum() > l.Max*int64(i+1)/int64(len(steps)+2) })
			stepped.Step(t, by)
		}
		await(t, "the limit is reached", func() bool { return sum() >= l.Max })
		for i := 0; i < 20 || byHost && i < 400 && sum() <= l.Max+bound.Above(l); i++ { // and once nothing is left
			stepped.Step(t, 25*time.Hour)
			time.Sleep(50 * time.Millisecond)
		}
		await(t, "all are denied", func() bool {
			for _, p := range all {
				if _, denials := p.admitted(t); denials <= 20 {
					return false
				}
			}
			return true
		})
		resets := make(map[int64]bool)
		for _, p := range all {
			p.close(t)
			for _, d := range p.decisions {
				if d.source == "on_credit" {
					onCredit++
				}
				if d.allowed {
					resets[d.reset] = true
				}
			}
		}
		if len(resets) != 1 && !byHost {
			t.Errorf("one window has %d resets: %v", len(resets), resets)
		}
		b, err := redisbackend.Open(&redis.Options{Addr: s.addr}, redisbackend.Config{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		return sum(), sum() - usedOf(t, b, "user:1", one(l)), onCredit
	}
	total, unpaid, onCredit := play(false)
	byHost, _, _ := play(true)
	if unpaid != 0 {
		t.Errorf("%d more were admitted than charged", unpaid)
	}
	if onCredit*2 < int(l.Max) {
		t.Errorf("only %d on credit: the test shows nothing", onCredit)
	}
	if byHost-l.Max <= bound.Above(l) {
		t.Errorf("by the host's clock %d are admitted of %d: the test would not notice", byHost, l.Max)
	}
	shown := figures{over: max(0, total-l.Max), note: fmt.Sprintf("%d of %d on credit; by the host's clock over %d", onCredit, total, byHost-l.Max)}
	report(t, "credit-clocks", result{bound: bound.Above(l), formula: fmt.Sprintf("3 x floor(0.1 x %d / 3)", l.Max), sluice: shown})
}
