//go:build unix

package router_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// takes is the results of a number of takes of one key.
type takes struct{ admitted, exact, exactAdmitted int }

func takeMany(t *testing.T, b backend.Backend, p *limit.Policy, key string, n int) (told takes) {
	t.Helper()
	for range n {
		r, err := b.Take(t.Context(), backend.Request{Key: key, Policy: p, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		exact := r.Guarantee == backend.Exact
		if !exact && !errors.Is(r.Cause, backend.ErrCountsLost) {
			t.Fatalf("%s, because %v", r.Guarantee, r.Cause)
		}
		if exact {
			told.exact++
		}
		if r.Allowed {
			told.admitted++
		}
		if exact && r.Allowed {
			told.exactAdmitted++
		}
	}
	return told
}

// untripped has no breaker: while a server restarts, heartbeats would open it.
var untripped = router.Config{TripAfter: -1}

var fiveAMinute = &limit.Policy{Name: "five", Limits: []limit.Limit{limit.PerMinute(5)}}

// TestRestartedPrimaryIsNotExact restarts a group's primary empty, and looks at the very next decisions.
func TestRestartedPrimaryIsNotExact(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, 0)
	r := dial(t, c.topology, untripped)
	if told := takeMany(t, r, fiveAMinute, "k", 6); told != (takes{5, 6, 5}) {
		t.Fatalf("of a primary that is well: %+v", told)
	}
	c.primaries["a"].Restart()
	if told := takeMany(t, r, fiveAMinute, "k", 6); told != (takes{admitted: 5}) {
		t.Errorf("after a restart: %+v", told)
	}
	short := &limit.Policy{Name: "short", Limits: []limit.Limit{limit.Fixed(5, 50*time.Millisecond)}}
	await(t, "decisions are exact again", func() bool { return takeMany(t, r, short, "k", 1).exact == 1 })
	await(t, "others can learn of it", func() bool { // go-redis may rest for a second after dials that failed
		takeMany(t, r, fiveAMinute, "k", 1)
		return c.primaries["a"].Client().Exists(t.Context(), "sl:server").Val() == 1
	})
	if told := takeMany(t, dial(t, c.topology, untripped), fiveAMinute, "other", 3); told.exact != 0 {
		t.Errorf("a process that begins after the restart: %+v", told)
	}
}

// TestRestartUnderLeases restarts the primary while two processes with leases use up a limit.
func TestRestartUnderLeases(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, 0)
	const most = 400
	p := &limit.Policy{Name: "leased", Limits: []limit.Limit{limit.PerHour(most)}}
	var leases [2]*lease.Lease
	for i := range leases {
		l, err := lease.New(dial(t, c.topology, untripped), lease.Config{Processes: 2, Batch: 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		leases[i] = l
	}
	var all takes
	take := func(n int) {
		for i := range n {
			told := takeMany(t, leases[i%2], p, "k", 1)
			all.admitted, all.exactAdmitted = all.admitted+told.admitted, all.exactAdmitted+told.exactAdmitted
		}
	}
	take(most / 2)
	if all.exactAdmitted != most/2 {
		t.Fatalf("of a primary that is well: %+v", all)
	}
	for range 2 {
		c.primaries["a"].Restart()
		take(most)
	}
	if all.exactAdmitted > most {
		t.Errorf("%d of %d admissions are called exact, the limit is %d", all.exactAdmitted, all.admitted, most)
	}
	leased := leases[0].Stats().Leased + leases[1].Stats().Leased
	if t.Logf("%+v, %d from leases", all, leased); leased == 0 {
		t.Error("nothing was leased: the test shows nothing")
	}
}

// TestSuccessorIsNotExact names another primary, of which this process knows nothing: it lacks what the one before had.
func TestSuccessorIsNotExact(t *testing.T) {
	t.Parallel()
	old, young := testserver.Redis(t), testserver.Redis(t)
	at := func(epoch uint64, s *testserver.Server) router.Topology {
		return router.Topology{Epoch: epoch, Groups: []router.Group{{Name: "a", Primary: s.Addr}}}
	}
	r := dial(t, at(1, old), untripped)
	if told := takeMany(t, r, fiveAMinute, "k", 5); told != (takes{5, 5, 5}) {
		t.Fatalf("%+v", told)
	}
	update(t, r, at(2, young))
	if told := takeMany(t, r, fiveAMinute, "k", 6); told != (takes{admitted: 5}) {
		t.Errorf("by the successor: %+v", told)
	}
	if p, err := r.Peek(t.Context(), backend.Request{Key: "k", Policy: fiveAMinute, Cost: 1}); err != nil || p.Guarantee != backend.Bounded {
		t.Errorf("a look says %s, error %v", p.Guarantee, err)
	}
}

// TestLossBeforeAMove: what a group or a side has lost is not handed over.
func TestLossBeforeAMove(t *testing.T) {
	t.Parallel()
	t.Run("between groups", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t, 2, 0)
		from, to := c.topology, c.topology
		from.Epoch, from.Groups = 1, c.topology.Groups[:1]
		to.Epoch, to.Groups = 2, c.topology.Groups[1:]
		r := dial(t, from, untripped)
		takeMany(t, r, fiveAMinute, "k", 5)
		c.primaries["a"].Restart()
		if told := takeMany(t, r, fiveAMinute, "other", 1); told.exact != 0 {
			t.Fatalf("%+v", told)
		}
		update(t, r, to)
		if told := takeMany(t, r, fiveAMinute, "k", 6); told != (takes{admitted: 5}) {
			t.Errorf("where it went: %+v", told)
		}
	})
	t.Run("between sides", func(t *testing.T) {
		t.Parallel()
		old, young := testserver.Redis(t), testserver.Redis(t)
		open := func(s *testserver.Server) backend.Backend {
			b, err := redisbackend.Open(&redis.Options{Addr: s.Addr}, redisbackend.Config{Timeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		version := uint64(1)
		d := newDual(t, dual.Config{
			Old: open(old), New: open(young), CarryOver: true,
			Decide: func(string) (bool, uint64) { return version == 2, version },
		})
		takeMany(t, d, fiveAMinute, "k", 5)
		old.Restart()
		if told := takeMany(t, d, fiveAMinute, "other", 1); told.exact != 0 {
			t.Fatalf("%+v", told)
		}
		version = 2
		if told := takeMany(t, d, fiveAMinute, "k", 6); told != (takes{admitted: 5}) {
			t.Errorf("on the other side: %+v", told)
		}
	})
}
