package backend_test

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
)

// refusals are the fields, values and bounds of a joined error, in its order. Anything but a *limit.Error is reported.
func refusals(t *testing.T, err error) []string {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Errorf("%v (%T) joins nothing", err, err)
		return nil
	}
	var all []string
	for _, e := range joined.Unwrap() {
		bad, ok := e.(*limit.Error)
		if !ok || bad.Field == "" || bad.Value == "" || bad.Bound == "" {
			t.Errorf("%v (%T) is not a complete *limit.Error", e, e)
			continue
		}
		all = append(all, bad.Field+" = "+bad.Value)
	}
	return all
}

// What is wrong with a configuration is named as the user wrote it, once, all at once and always in the same order.
func TestConstructorsNameWhatTheyRefuse(t *testing.T) {
	good := backendtesting.NewMemory(t, memory.Config{})
	var noMemory *memory.Memory
	var noRedis *redisbackend.Redis
	for name, test := range map[string]struct {
		make func() (any, error)
		want []string
	}{
		"Dual of nothing": {
			func() (any, error) { return dual.New(dual.Config{CarryOver: true}) },
			[]string{"dual: Old = nil", "dual: New = nil", "dual: Decide = nil"},
		},
		"Dual of typed nils": {
			func() (any, error) {
				return dual.New(dual.Config{Old: noMemory, New: noRedis, Decide: backendtesting.Constant(true)})
			},
			[]string{"dual: Old = nil *memory.Memory", "dual: New = nil *redisbackend.Redis"},
		},
		"Lease": {
			func() (any, error) {
				return lease.New(nil, lease.Config{Processes: -1, Life: -1, MaxKeys: -2})
			},
			[]string{"lease: inner = nil", "lease: Processes = -1", "lease: Life = -1ns", "lease: MaxKeys = -2"},
		},
		"Lease of more processes than there can be": {
			func() (any, error) { return lease.New(good, lease.Config{Processes: math.MaxInt}) },
			[]string{"lease: Processes = " + strconv.Itoa(math.MaxInt)},
		},
		"Lease of a typed nil": {
			func() (any, error) { return lease.New(noMemory, lease.Config{}) },
			[]string{"lease: inner = nil *memory.Memory"},
		},
		"Lease of what can't take back": {
			func() (any, error) { return lease.New(backendtesting.OnlyTakes{Backend: good}, lease.Config{}) },
			[]string{"lease: inner = backendtesting.OnlyTakes"},
		},
		"Memcached without servers": {
			func() (any, error) { return memcached.New(nil, memcached.Config{}) },
			[]string{"memcached: servers = none"},
		},
		"Memcached": {
			func() (any, error) {
				return memcached.New([]string{"a:1", "", "a:1", "localhost"},
					memcached.Config{Prefix: "with space", Timeout: -1, Tries: -1, IdleConns: -1, MaxCalls: -1})
			},
			[]string{`memcached: servers[1] = ""`, `memcached: servers[2] = "a:1"`, `memcached: servers[3] = "localhost"`, `memcached: Prefix = "with space"`, "memcached: Timeout = -1ns",
				"memcached: Tries = -1", "memcached: IdleConns = -1", "memcached: MaxCalls = -1"},
		},
		"Memcached of too many": {
			func() (any, error) {
				servers := make([]string, 5000)
				for i := range servers {
					servers[i] = "/" + strings.Repeat("s", i)
				}
				return memcached.New(servers, memcached.Config{})
			},
			[]string{"memcached: servers = 5000"},
		},
		"Redis": {
			func() (any, error) {
				return redisbackend.New(nil, redisbackend.Config{Prefix: "\n", Timeout: -1, Pipelines: -2, Queue: -3})
			},
			[]string{`redis: Prefix = "\n"`, "redis: Timeout = -1ns", "redis: Pipelines = -2", "redis: Queue = -3", "redis client: client = <nil>"},
		},
	} {
		for range 8 { // maps are walked in another order each time
			made, err := test.make()
			if err == nil {
				t.Errorf("%s: made %v", name, made)
				break
			}
			if got := refusals(t, flat(err)); strings.Join(got, "; ") != strings.Join(test.want, "; ") {
				t.Errorf("%s: refuses\n%s\nwant\n%s", name, strings.Join(got, "; "), strings.Join(test.want, "; "))
				break
			}
			if text := err.Error(); strings.Contains(text, "lease: limit:") || strings.Contains(text, "limit: lease:") ||
				strings.Contains(text, "limit: dual:") {
				t.Errorf("%s: %q names the package twice", name, text)
				break
			}
		}
	}
}

// flat joins what joined errors join.
func flat(err error) error { return joinedErrors(leaves(err)) }

type joinedErrors []error

func (j joinedErrors) Error() string   { return "" }
func (j joinedErrors) Unwrap() []error { return j }

func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}
