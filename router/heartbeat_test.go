package router_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/router"
)

func TestHeartbeatInterval(t *testing.T) {
	for name, test := range map[string]struct {
		interval time.Duration
		least    int // heartbeats within a minute and a half
		most     int
	}{
		"default":      {0, 80, 102},
		"ten a second": {100 * time.Millisecond, 800, 1020},
		"rare":         {time.Minute, 2, 2},
		"off":          {-1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, primary, _ := pair(t, 0, router.Config{Heartbeat: test.interval})
				time.Sleep(90 * time.Second)
				if n := primary.called("beat"); n < test.least || n > test.most {
					t.Errorf("%d heartbeats, want %d to %d", n, test.least, test.most)
				}
			})
		})
	}
}

func TestIdleNodesBreakerOpensAndCloses(t *testing.T) {
	for name, fault := range map[string]func(c *counts){
		"dead":   func(c *counts) { c.err = unavailable() },
		"frozen": func(c *counts) { c.delay = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events log
				r, primary, replicas := pair(t, 1, router.Config{OnEvent: events.add})
				primary.set(fault)
				time.Sleep(8 * time.Second)
				if got := r.Nodes()[0].Breaker; got == "closed" {
					t.Error("the breaker stays closed")
				}
				primary.set(func(c *counts) { c.err, c.delay = nil, 0 })
				time.Sleep(2500 * time.Millisecond)
				if err := take(t, r); err != nil {
					t.Errorf("after recovery: %v", err)
				}
				want := []router.EventKind{router.BreakerOpened, router.BreakerClosed}
				if got := events.kinds("a", "primary"); !slices.Equal(got, want) {
					t.Errorf("events %v, want %v", got, want)
				}
				if got := events.kinds("a", "replica-1"); got != nil {
					t.Errorf("events of the replica: %v", got)
				}
				if n := replicas[0].called("beat"); n < 8 || n > 15 {
					t.Errorf("%d heartbeats to the healthy node", n)
				}
			})
		})
	}
}

// Callers whose deadlines are shorter than the node's timeout are no evidence against it. They make the heartbeat
// look, which comes only once a minute here.
func TestShortDeadlinesUncoverAFrozenNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, primary, _ := pair(t, 0, router.Config{Heartbeat: time.Minute})
		primary.set(func(c *counts) { c.delay = time.Hour })
		start := time.Now()
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err := r.Take(ctx, request("k"))
			cancel()
			if errors.Is(err, router.ErrBreakerOpen) {
				break
			}
			if kind(err) != backend.Interrupted {
				t.Fatalf("take: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
			if time.Since(start) > 20*time.Second {
				t.Fatal("the breaker stays closed")
			}
		}
		primary.set(func(c *counts) { c.delay = 0 })
		time.Sleep(time.Second * 3 / 2)
		if err := take(t, r); err != nil {
			t.Errorf("after the thaw: %v", err)
		}

		// A healthy node is not asked all the time because some callers are in a hurry.
		primary.set(func(c *counts) { c.calls["beat"] = 0 })
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			primary.set(func(c *counts) { c.delay = 11 * time.Millisecond })
			_, _ = r.Take(ctx, request("k"))
			cancel()
		}
		if n := primary.called("beat"); n > 120 {
			t.Errorf("%d heartbeats in 10 s", n)
		}
	})
}

func TestEventsOfHeartbeats(t *testing.T) {
	type kinds = []router.EventKind
	for name, test := range map[string]struct {
		replica bool
		first   func(b *control.Heartbeat) // nil: as the topology says
		then    func(b *control.Heartbeat)
		want    kinds
		text    string // of the last event
	}{
		"nothing":   {false, nil, nil, nil, ""},
		"restarted": {false, nil, func(b *control.Heartbeat) { b.RunID = "b" }, kinds{router.Restarted}, "a/primary: restarted (a to b)"},
		"demoted": {
			false, nil, func(b *control.Heartbeat) { b.Primary, b.LinkUp = false, true }, kinds{router.RoleChanged, router.BreakerOpened},
			"a/primary: breaker opened: sluice: ping at a/primary: unavailable: the server says that it is a replica",
		},
		"a replica from the start": {
			false, func(b *control.Heartbeat) { b.Primary = false }, nil, kinds{router.RoleChanged, router.BreakerOpened},
			"a/primary: breaker opened: sluice: ping at a/primary: unavailable: the server says that it is a replica",
		},
		"link down": {true, nil, func(b *control.Heartbeat) { b.LinkUp = false }, kinds{router.LinkDown}, "a/replica-1: link down"},
		"link up": {
			true, func(b *control.Heartbeat) { b.LinkUp = false }, func(b *control.Heartbeat) { b.LinkUp = true },
			kinds{router.LinkDown, router.LinkUp}, "a/replica-1: link up",
		},
		"promoted": {
			true, nil, func(b *control.Heartbeat) { b.Primary, b.LinkUp = true, false }, kinds{router.RoleChanged},
			"a/replica-1: role changed (replica to primary)",
		},
		"restarted and behind": {
			true, nil, func(b *control.Heartbeat) { b.RunID, b.LinkUp = "b", false }, kinds{router.Restarted, router.LinkDown},
			"a/replica-1: link down",
		},
		"run id unknown": {false, nil, func(b *control.Heartbeat) { b.RunID = "" }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory(t)
				primary, replica := newPrimary(store), newReplica(store)
				changed, node := primary, "primary"
				if test.replica {
					changed, node = replica, "replica-1"
				}
				change := func(f func(b *control.Heartbeat)) {
					if f != nil {
						changed.set(func(c *counts) { f(&c.beat) })
					}
				}
				var events log
				change(test.first)
				open(t, []router.NodeGroup{{Name: "a", Primary: primary, Replicas: []backend.Backend{replica}}},
					router.Config{OnEvent: events.add})
				time.Sleep(3 * time.Second)
				change(test.then)
				time.Sleep(3 * time.Second)
				if got := events.kinds("a", node); !slices.Equal(got, test.want) || len(events.all()) != len(test.want) {
					t.Fatalf("events %v, want %v of %s", events.all(), test.want, node)
				}
				if n := len(events.all()); n > 0 && events.all()[n-1].String() != test.text {
					t.Errorf("%q, want %q", events.all()[n-1], test.text)
				}
			})
		})
	}
}

func TestMisconfiguredIsLoudButNotEndless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events log
		r, f := lone(t, router.Config{OnEvent: events.add})
		f.set(func(c *counts) {
			c.err = &backend.Error{Op: "take", Node: "n", Kind: backend.Misconfigured, Err: errors.New("NOPERM")}
		})
		for range 1000 {
			if err := take(t, r); kind(err) != backend.Misconfigured {
				t.Fatal(err)
			}
			time.Sleep(11 * time.Millisecond)
		}
		synctest.Wait()
		want := []router.EventKind{router.Misconfigured, router.Misconfigured} // at 0 and 10 s
		if got := events.kinds("a", "primary"); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if got, want := events.all()[0].String(), "a/primary: misconfigured: sluice: take at n: misconfigured: NOPERM"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestSlowOnEventBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events log
		release := make(chan struct{})
		r, primary, _ := pair(t, 0, router.Config{Heartbeat: 10 * time.Millisecond, OnEvent: func(e router.Event) {
			<-release
			events.add(e)
		}})
		for i := range 500 { // twice the queue
			primary.set(func(c *counts) { c.beat.RunID = string(rune('b' + i)) })
			time.Sleep(13 * time.Millisecond)
			if err := take(t, r); err != nil {
				t.Fatal(err)
			}
		}
		close(release)
		synctest.Wait()
		primary.set(func(c *counts) { c.beat.RunID = "last" })
		time.Sleep(time.Second)
		var lost uint64
		for _, e := range events.all() {
			lost += e.Lost
		}
		if n := len(events.all()); n < 250 || n > 270 || lost < 100 || uint64(n)+lost > 501 {
			t.Errorf("%d events delivered, %d lost", n, lost)
		}
	})
}

func TestCloseEndsAHeartbeatUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, primary, _ := pair(t, 0, router.Config{})
		primary.set(func(c *counts) { c.delay = time.Hour })
		time.Sleep(1500 * time.Millisecond)
		start := time.Now()
		if err := r.Close(); err != nil || time.Since(start) > 0 {
			t.Errorf("Close took %v: %v", time.Since(start), err)
		}
	})
}

func TestCloseWaitsForOnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, primary, _ := pair(t, 0, router.Config{OnEvent: func(router.Event) { time.Sleep(time.Minute) }})
		primary.set(func(c *counts) { c.beat.RunID = "b" })
		time.Sleep(2 * time.Second)
		start := time.Now()
		if err := r.Close(); err != nil || time.Since(start) < 50*time.Second {
			t.Errorf("Close took %v: %v", time.Since(start), err)
		}
	})
}

func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, primary, replicas := pair(t, 2, router.Config{})
		replicas[0].set(func(c *counts) { c.beat.Age, c.delay = 3*time.Second, 2*time.Millisecond })
		replicas[1].set(func(c *counts) { c.beat.LinkUp = false })
		time.Sleep(2 * time.Second)
		_, _ = r.Peek(t.Context(), request("k"))
		nodes := r.Nodes()
		var names []string
		for _, n := range nodes {
			names = append(names, n.Group+"/"+n.Node+" "+n.Role.String()+" "+n.Breaker)
			if n.Heartbeat.RunID != "a" || time.Since(n.LastHeartbeat) > 1200*time.Millisecond {
				t.Errorf("%s: heartbeat %+v at %v", n.Node, n.Heartbeat, n.LastHeartbeat)
			}
		}
		if want := []string{"a/primary primary closed", "a/replica-1 replica closed", "a/replica-2 replica closed"}; !slices.Equal(names, want) {
			t.Errorf("nodes %q, want %q", names, want)
		}
		if nodes[0].Readable || !nodes[1].Readable || nodes[2].Readable || nodes[0].Age != 0 {
			t.Errorf("readable: %+v", nodes)
		}
		if age := nodes[1].Age; age < 3*time.Second || age > 3*time.Second+1200*time.Millisecond {
			t.Errorf("age %v", age)
		}
		if got := nodes[1].Latency; got != 2*time.Millisecond {
			t.Errorf("latency %v", got)
		}
		_ = primary
	})
}

func TestPingAsksEveryNode(t *testing.T) {
	ok, dead := newMemory(t), newMemory(t)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	r := open(t, []router.NodeGroup{
		{Name: "a", Primary: newFake(ok)}, // can't be asked
		{Name: "b", Primary: ok, Replicas: []backend.Backend{dead}},
	}, router.Config{Heartbeat: -1})
	if err := r.Ping(t.Context()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("ping with a dead replica: %v", err)
	}
}
