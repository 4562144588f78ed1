//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// under makes takes of four keys under policies with equal limits, which go to the server together. It returns their outcomes, and
// how many script calls were sent.
func (g *rig) under(policies ...*limit.Policy) (outcomes map[string]error, calls int) {
	g.t.Helper()
	outcomes = make(map[string]error)
	var mu sync.Mutex // guards outcomes
	g.hold()
	for i := range 4 {
		for _, p := range policies {
			key := fmt.Sprintf("k%d", i)
			g.queue(func() {
				r, err := g.Take(context.Background(), backend.Request{Key: key, Policy: p, Cost: 1})
				if err == nil && !r.Allowed {
					err = errDenied
				}
				mu.Lock()
				outcomes[p.Name+":"+key] = err
				mu.Unlock()
			})
		}
	}
	g.release()
	return outcomes, len(g.held)
}

var errDenied = errors.New("denied")

// TestSharedCallRefused: takes that share a script call are each admitted, denied or refused as if they had been alone, and
// what is admitted is counted once, whatever the server refuses.
func TestSharedCallRefused(t *testing.T) {
	t.Parallel()
	single := []limit.Limit{limit.PerHour(10)}
	several := []limit.Limit{limit.PerHour(10), limit.Sliding(10, time.Hour, time.Minute)}
	const foreign = "no state"
	for name, test := range map[string]struct { // nothing is left of k1
		prepare [][]any // for the server
		refused map[string]backend.Kind
	}{
		"no rights for a policy": {
			prepare: [][]any{{"ACL", "SETUSER", "default", "resetkeys", "~sl:p:*"}},
			refused: map[string]backend.Kind{"q:k0": backend.Misconfigured, "q:k1": backend.Misconfigured,
				"q:k2": backend.Misconfigured, "q:k3": backend.Misconfigured},
		},
		"no rights for a key": {
			prepare: [][]any{{"ACL", "SETUSER", "default", "resetkeys", "~sl:p:*", "~sl:q:k0", "~sl:q:k1", "~sl:q:k3"}},
			refused: map[string]backend.Kind{"q:k2": backend.Misconfigured},
		},
		"no right to write": {
			prepare: [][]any{{"ACL", "SETUSER", "default", "-set"}},
			refused: map[string]backend.Kind{"p:k0": backend.Misconfigured, "p:k2": backend.Misconfigured, "p:k3": backend.Misconfigured,
				"q:k0": backend.Misconfigured, "q:k2": backend.Misconfigured, "q:k3": backend.Misconfigured},
		},
		// The server finds this out amid the script, after others were written.
		"no right to write under a policy": {
			prepare: [][]any{{"ACL", "SETUSER", "default", "reset", "on", "nopass", "~*", "+@all", "-set", "(+set ~sl:p:*)"}},
			refused: map[string]backend.Kind{"q:k0": backend.Misconfigured, "q:k2": backend.Misconfigured, "q:k3": backend.Misconfigured},
		},
		"no memory": {
			prepare: [][]any{{"CONFIG", "SET", "maxmemory", "1"}},
			refused: map[string]backend.Kind{"p:k0": backend.Unavailable, "p:k2": backend.Unavailable, "p:k3": backend.Unavailable,
				"q:k0": backend.Unavailable, "q:k2": backend.Unavailable, "q:k3": backend.Unavailable},
		},
		"too few replicas": {
			prepare: [][]any{{"CONFIG", "SET", "min-replicas-to-write", "1"}},
			refused: map[string]backend.Kind{"p:k0": backend.Unavailable, "p:k2": backend.Unavailable, "p:k3": backend.Unavailable,
				"q:k0": backend.Unavailable, "q:k2": backend.Unavailable, "q:k3": backend.Unavailable},
		},
		"another type": {
			prepare: [][]any{{"HSET", "sl:q:k2", "f", "v"}},
			refused: map[string]backend.Kind{"q:k2": backend.Misconfigured},
		},
		"corrupt": {
			prepare: [][]any{{"SET", "sl:q:k2", foreign}},
			refused: map[string]backend.Kind{"q:k2": backend.Corrupt},
		},
	} {
		for script, limits := range map[string][]limit.Limit{"takesfixed": single, "takes": several} {
			t.Run(name+"/"+script, func(t *testing.T) {
				t.Parallel()
				g := newRig(t, redisbackend.Config{})
				client := g.server.Client()
				p, q := &limit.Policy{Name: "p", Limits: limits}, &limit.Policy{Name: "q", Limits: limits}
				for _, policy := range []*limit.Policy{p, q} {
					backendtesting.MustTake(t, g, backend.Request{Key: "k1", Policy: policy, Cost: 10})
				}
				for _, args := range test.prepare {
					do(t, client, args...)
				}
				outcomes, _ := g.under(p, q)
				do(t, client, "ACL", "SETUSER", "default", "reset", "on", "nopass", "~*", "&*", "+@all")
				if len(outcomes) != 8 {
					t.Errorf("%d takes have an outcome, want 8", len(outcomes))
				}
				for key, err := range outcomes {
					kind, refused := test.refused[key]
					value, _ := client.Get(t.Context(), "sl:"+key).Result()
					switch {
					case refused:
						backendtesting.WantError(t, err, kind, false)
						if value != "" && value != foreign && key != "q:k1" {
							t.Errorf("%s is refused and stored as %q", key, value)
						}
					case key[2:] == "k1":
						if !errors.Is(err, errDenied) {
							t.Errorf("%s, of which nothing is left: %v", key, err)
						}
					case err != nil:
						t.Errorf("%s: %v", key, err)
					default:
						st, err := state.ParseState(value)
						if err != nil {
							t.Fatalf("%s: %v", key, err)
						}
						now := client.Time(t.Context()).Val()
						v := st.Peek(&limit.Policy{Limits: limits}, state.At{Micros: now.UnixMicro()}, 1)
						if left := v.Binding().Remaining; left != 9 {
							t.Errorf("%s was taken once: %d of 10 are left", key, left)
						}
					}
				}
			})
		}
	}
}

// TestWithoutMemoryShares: takes that the server has no memory for go on to share calls.
func TestWithoutMemoryShares(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	do(t, g.server.Client(), "CONFIG", "SET", "maxmemory", "1")
	for range 3 {
		outcomes, calls := g.under(&limit.Policy{Name: "p", Limits: backendtesting.Hourly.Limits}, &limit.Policy{Name: "q", Limits: backendtesting.Hourly.Limits})
		for _, err := range outcomes {
			backendtesting.WantError(t, err, backend.Unavailable, false)
			if !strings.Contains(err.Error(), "OOM command not allowed when used memory") {
				t.Errorf("%v", err)
			}
		}
		if calls != 1 {
			t.Errorf("8 takes were sent in %d script calls, want 1", calls)
		}
	}
}

// TestRefusedGoesAlone: a policy whose takes are refused takes others along once, not each time; and shares calls again some time
// after it is well.
func TestRefusedGoesAlone(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	client := g.server.Client()
	limits := []limit.Limit{limit.PerHour(1_000_000)}
	p, q := &limit.Policy{Name: "p", Limits: limits}, &limit.Policy{Name: "q", Limits: limits}
	if _, calls := g.under(p, q); calls != 1 {
		t.Errorf("8 takes under equal limits were sent in %d script calls, want 1", calls)
	}
	do(t, client, "ACL", "SETUSER", "default", "resetkeys", "~sl:p:*")
	for _, want := range []int{1 + 8, 1 + 4, 1 + 4} { // the refused call and one for each take, then one for all of p
		outcomes, calls := g.under(p, q)
		for key, err := range outcomes {
			if refused := key[0] == 'q'; refused != (err != nil) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if calls != want {
			t.Errorf("8 takes of which 4 are refused were sent in %d script calls, want %d", calls, want)
		}
	}
	do(t, client, "ACL", "SETUSER", "default", "allkeys")
	for range 300 {
		if _, err := g.Take(t.Context(), backend.Request{Key: "k", Policy: q, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, calls := g.under(p, q); calls != 1 {
		t.Errorf("8 takes under equal limits were sent in %d script calls, want 1", calls)
	}
}

// TestSharedCallAnsweredByProxy: takes that shared a script call are not sent again after an error reply that isn't known as one of
// Redis's own: a proxy gives its own when it has lost the reply. Each says that it may have been counted, and so does a lone one.
func TestSharedCallAnsweredByProxy(t *testing.T) {
	t.Parallel()
	const callers = 8
	for _, text := range []string{"upstream failure", "ERR Connection timed out"} {
		g := newRig(t, redisbackend.Config{})
		take := func() {
			_, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
			backendtesting.WantError(t, err, backend.Misconfigured, true)
		}
		g.hold()
		for range callers {
			g.queue(take)
		}
		g.proxy.SetFault(func(args []string) testserver.Action {
			if strings.HasPrefix(args[0], "EVAL") {
				return testserver.Answer(text)
			}
			return testserver.Pass
		})
		if calls := g.release(); calls != 1 {
			t.Errorf("%q: %d takes were sent in %d script calls, want 1", text, callers, calls)
		}
		if n := backendtesting.Used(t, g.server, backendtesting.Secret); n != callers {
			t.Errorf("%q: %d takes were counted %d times", text, callers, n)
		}
		take()
	}
}

// TestRefusedGoesAloneAmongMany: that a policy's takes go alone is remembered however many other policies are in use.
func TestRefusedGoesAloneAmongMany(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	limits := []limit.Limit{limit.PerHour(1_000_000)}
	p, q := &limit.Policy{Name: "p", Limits: limits}, &limit.Policy{Name: "q", Limits: limits}
	do(t, g.server.Client(), "ACL", "SETUSER", "default", "resetkeys", "~sl:p*")
	for _, want := range []int{1 + 8, 1 + 4} { // the refused call and one for each take, then one for all of p
		if _, calls := g.under(p, q); calls != want {
			t.Errorf("8 takes of which 4 are refused were sent in %d script calls, want %d", calls, want)
		}
		for i := range 600 {
			other := &limit.Policy{Name: fmt.Sprintf("p%d", i), Limits: []limit.Limit{limit.PerHour(int64(i) + 1)}}
			backendtesting.MustTake(t, g, backend.Request{Key: "k", Policy: other, Cost: 1})
		}
	}
}
