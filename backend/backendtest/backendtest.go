// Package backendtest checks that a [backend.Backend] keeps the promises of package backend: every algorithm,
// policies as a whole, floors, refunds, expiry, bad input, keys that must not collide, and callers at once.
//
//	func TestMyBackend(t *testing.T) {
//		backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
//			b, err := mybackend.New(mybackend.Config{Now: now})
//			if err != nil {
//				t.Fatal(err)
//			}
//			return b
//		}, backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder]())
//	}
//
// The suite judges by the clock that it hands to open, which stands still unless the suite moves it: windows of an
// hour pass in no time, and a server's own clock or the expiry of its keys must not decide anything. What a backend
// promises less of it says by an [Option]; what is not said is demanded.
//
// Verdicts and states are compared with those of package limit/state, and those of the tables with literals besides, so a
// backend that runs package limit/state can't hide behind its bugs. What the suite can't cause it doesn't check: lost
// replies, dead servers and failovers are for the backend's own tests.
package backendtest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// An Option says what a backend promises more, or less.
type Option func(*config)

type config struct {
	required []reflect.Type
	weakest  backend.Guarantee
	withheld int64
	contends bool
	lags     bool
	routes   bool
	owed     func(backend.Backend) int64
	above    func(limit.Limit) int64
}

// Require demands an optional interface of package backend, so that one that got lost by a refactoring fails. An
// interface that is implemented is checked with or without it.
func Require[Interface any]() Option {
	return func(c *config) { c.required = append(c.required, reflect.TypeFor[Interface]()) }
}

// Weakest allows decisions whose guarantee is weaker than Exact, down to g.
func Weakest(g backend.Guarantee) Option { return func(c *config) { c.weakest = g } }

// Withholds allows the backend to deny, and to report as spent, up to most of each limit that is unused:
// quota that it charged in advance. It must still never admit too much.
func Withholds(most int64) Option { return func(c *config) { c.withheld = most } }

// Contends allows calls to fail with [backend.Contended]: the suite makes them again.
func Contends() Option { return func(c *config) { c.contends = true } }

// Lags allows peeks and loads to answer from a copy that lags behind: the suite asks again, for some seconds.
func Lags() Option { return func(c *config) { c.lags = true } }

// Routes says that the backend moves keys between places of its own under a [state.Topology]: it has its own answers to
// moves of that kind, which are not checked.
func Routes() Option { return func(c *config) { c.routes = true } }

// Run checks the backends that open returns. Each is to be empty and to read the time from now alone; open is called
// for every part of the suite. Run closes what it got.
func Run(t *testing.T, open func(t *testing.T, now func() time.Time) backend.Backend, options ...Option) {
	t.Helper()
	var c config
	for _, o := range options {
		o(&c)
	}
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			s := &subject{config: c, clock: newClock()}
			s.Backend = open(t, s.clock.Now)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			part.run(t, s)
		})
	}
}

// parts in the order in which a new backend comes to pass them.
var parts = []struct {
	name string
	run  func(*testing.T, *subject)
}{
	{"Interfaces", testInterfaces},
	{"Fixed", testFixed},
	{"Aligned", testAligned},
	{"Staggered", testStaggered},
	{"Sliding", testSliding},
	{"Bucket", testBucket},
	{"Policy", testPolicy},
	{"Denied", testDenied},
	{"Expiry", testExpiry},
	{"ClockBack", testClockBack},
	{"PolicyChange", testPolicyChange},
	{"BigNumbers", testBigNumbers},
	{"Peek", testPeek},
	{"Refund", testRefund},
	{"BucketLives", testBucketLives},
	{"Charge", testCharge},
	{"ChargeMarks", testChargeMarks},
	{"Reset", testReset},
	{"Grant", testGrant},
	{"Load", testLoad},
	{"Seed", testSeed},
	{"Floor", testFloor},
	{"FloorKept", testFloorKept},
	{"HandOver", testHandOver},
	{"TwoMovers", testTwoMovers},
	{"Publish", testPublish},
	{"PublishAtOnce", testPublishAtOnce},
	{"BadInput", testBadInput},
	{"Context", testContext},
	{"Keys", testKeys},
	{"Concurrent", testConcurrent},
	{"ConcurrentRefund", testConcurrentRefund},
	{"History", testHistory},
	{"Closed", testClosed},
	{"CloseAtWork", testCloseAtWork},
}

// reporter is what *testing.T and *rapid.T have in common.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// start is on a whole hour, so that aligned windows and sub-buckets start with a part.
var start = time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)

// clock stands still unless it is set.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.set(0)
	return c
}

func (c *clock) Now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) set(after time.Duration) { c.micros.Store(start.Add(after).UnixMicro()) }
func (c *clock) step(d time.Duration)    { c.micros.Add(d.Microseconds()) }

// subject is the backend under test.
type subject struct {
	config
	backend.Backend
	clock *clock
}

// take calls Take, which must give a verdict.
func (s *subject) take(t reporter, req backend.Request) backend.Result {
	t.Helper()
	result, err := s.try(req)
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	s.checkResult(t, &req, &result)
	s.settle(t)
	if cost := result.Receipt().Cost; result.Allowed && cost != req.Cost || !result.Allowed && cost != 0 {
		t.Errorf("a take of %d, allowed %t, left a receipt for %d", req.Cost, result.Allowed, cost)
	}
	return result
}

// again makes a call, once more after each contention where that is allowed.
func (s *subject) again(call func() error) error {
	for tries := 0; ; tries++ {
		err := call()
		var failed *backend.Error
		if !s.contends || tries == 1000 || !errors.As(err, &failed) || failed.Kind != backend.Contended {
			return err
		}
		if failed.MayHaveCharged {
			return errors.Join(errors.New("contention that may have charged"), err)
		}
	}
}

// try calls Take, again after contention where that is allowed.
func (s *subject) try(req backend.Request) (result backend.Result, err error) {
	err = s.again(func() error {
		result, err = s.Take(context.Background(), req)
		return err
	})
	return result, err
}

func (s *subject) refund(req backend.Request, receipt state.Receipt, amount int64) error {
	return s.again(func() error {
		return s.Backend.(backend.Refunder).Refund(context.Background(), req, receipt, amount)
	})
}

func (s *subject) reset(req backend.Request) error {
	return s.again(func() error { return s.Backend.(backend.Resetter).Reset(context.Background(), req) })
}

func (s *subject) grant(req backend.Request, extra int64) error {
	return s.again(func() error { return s.Backend.(backend.Granter).Grant(context.Background(), req, extra) })
}

func (s *subject) seed(req backend.Request, st state.State) error {
	return s.again(func() error { return s.Backend.(backend.Seeder).Seed(context.Background(), req, st) })
}

func (s *subject) peek(t reporter, req backend.Request) backend.Result {
	t.Helper()
	result, err := s.Backend.(backend.Peeker).Peek(context.Background(), req)
	if err != nil {
		t.Fatalf("Peek: %v", err)
	}
	s.checkResult(t, &req, &result)
	if cost := result.Receipt().Cost; cost != 0 {
		t.Errorf("a peek left a receipt for %d", cost)
	}
	return result
}

// checkResult checks what holds for every result, whatever was decided.
func (s *subject) checkResult(t reporter, req *backend.Request, r *backend.Result) {
	t.Helper()
	if r.Source == backend.Unknown {
		t.Errorf("a decision of unknown source")
	}
	if now := s.clock.micros.Load(); r.Now != now {
		t.Errorf("decided at %d us, the clock says %d", r.Now, now)
	}
	if r.Guarantee > s.weakest || (r.Cause == nil) != (r.Guarantee == backend.Exact) {
		t.Errorf("guarantee %s because of %v, want %s or better, and a cause for what is not exact", r.Guarantee, r.Cause, s.weakest)
	}
	statuses := slices.Collect(r.All())
	if len(statuses) != len(req.Policy.Limits) {
		t.Fatalf("the status of %d limits under a policy of %d", len(statuses), len(req.Policy.Limits))
	}
	refused := false
	for i, status := range statuses {
		if status.Limit != req.Policy.Limits[i] {
			t.Errorf("status %d is of limit %s, want %s", i, status.Limit, req.Policy.Limits[i])
		}
		if status.Remaining < 0 || status.Remaining > status.Limit.Quota() || status.RetryAfter < 0 {
			t.Errorf("limit %s: %d left, retry after %s", status.Limit, status.Remaining, status.RetryAfter)
		}
		refused = refused || status.RetryAfter > 0
	}
	if refused == r.Allowed {
		t.Errorf("allowed: %t, but some limit asks to wait: %t", r.Allowed, refused)
	}
	if !slices.Contains(statuses, r.Binding()) {
		t.Errorf("the binding limit %s is none of the policy's", r.Binding().Limit)
	}
}

// mirror is one key under one policy, in the backend and in package limit/state at once: each call is made to both, and
// what they say is compared.
type mirror struct {
	*subject
	key    string
	policy *limit.Policy
	model  state.State
	moving state.Move // what requests act under

	receipts [][2]state.Receipt // of a backend that withholds: its own, which name its batches, and those of the model
	lagging  bool               // what a backend that owes knows may lack what was given back since the server's last verdict
}

func (s *subject) mirror(key string, limits ...limit.Limit) *mirror {
	return &mirror{subject: s, key: key, policy: &limit.Policy{Name: "suite", Limits: limits}}
}

// phases is the xxhash64 of the keys that staggered limits are tested with. Every backend must take this hash:
// otherwise a key's windows would move with the key from one backend to another.
var phases = map[string]uint64{
	"alice": 0x73a3ea485f2e6049, "bob": 0x92878a3b42bad03b, "carol": 0xc1ceb4e654b4cc38, "dave": 0x2857ed8653e4fb22,
}

func (m *mirror) at() state.At {
	return state.At{Micros: m.clock.micros.Load(), Phase: phases[m.key]}
}

func (m *mirror) request(cost int64, floor *state.State) backend.Request {
	return backend.Request{Key: m.key, Policy: m.policy, Cost: cost, Floor: floor, Move: m.moving}
}

func (m *mirror) take(t reporter, cost int64) backend.Result {
	t.Helper()
	return m.takeFloor(t, cost, nil)
}

// charge is a take of which the receipt matters.
func (m *mirror) charge(t reporter, cost int64) state.Receipt {
	t.Helper()
	result := m.take(t, cost)
	return result.Receipt()
}

func (m *mirror) takeFloor(t reporter, cost int64, floor *state.State) backend.Result {
	t.Helper()
	var before state.State
	if floor != nil {
		before = floor.Clone()
	}
	policy := limit.Policy{Name: m.policy.Name, Limits: slices.Clone(m.policy.Limits)}
	got := m.subject.take(t, m.request(cost, floor))
	if policy.Name != m.policy.Name || !slices.Equal(policy.Limits, m.policy.Limits) {
		t.Fatalf("Take changed the policy to %v", *m.policy)
	}
	if floor != nil && !floor.Equal(&before) {
		t.Fatalf("Take changed the floor from %s to %s", before.String(), floor.String())
	}

	now := m.at()
	if _, err := m.model.Arrive(m.policy, now, m.moving, floor, true); err != nil {
		t.Fatalf("package limit/state refuses with %v", err)
	}
	taken := m.model.Clone()
	want := taken.Take(m.policy, now, cost)
	if want.Allowed && !got.Allowed && m.withheld > 0 {
		m.comparePeek(t, &got.Verdict, cost) // it may keep up to withheld for itself
		return got
	}
	m.model = taken
	m.compareResult(t, "Take", &got, &want)
	if m.withheld > 0 {
		m.receipts = append(m.receipts, [2]state.Receipt{got.Receipt(), want.Receipt()})
	}
	if got.Source == backend.OnCredit {
		m.compareOwed(t, got.Receipt(), want.Receipt())
		return got
	}
	m.lagging = false
	m.compareReceipts(t, got.Receipt(), want.Receipt())
	if m.withheld == 0 && !got.State.Empty() {
		m.compareStates(t, "Take's result", got.State)
	}
	return got
}

func testInterfaces(t *testing.T, s *subject) {
	for _, required := range s.required {
		if !reflect.TypeOf(s.Backend).Implements(required) {
			t.Errorf("%T is no %s any more", s.Backend, required)
		}
	}
	if p, ok := s.Backend.(backend.Pinger); ok {
		if err := p.Ping(context.Background()); err != nil {
			t.Errorf("Ping: %v", err)
		}
	}
	if c, ok := s.Backend.(control.Clock); ok {
		s.clock.set(time.Hour + time.Microsecond)
		if got, want := c.NowMicros(), s.clock.micros.Load(); got != want {
			t.Errorf("NowMicros = %d, the clock says %d", got, want)
		}
	}
}
