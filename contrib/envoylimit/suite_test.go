package envoylimit_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/internal/testserver"
)

const config = `
domain: web
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: user
    value: vip
    rate_limit: {unit: minute, requests_per_unit: 50}
  - key: user
    value: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: user
    value: internal
  - key: account
    descriptors:
      - key: path
        value: /reports/*
        rate_limit: {unit: hour, requests_per_unit: 3}
      - key: path
        value: /shared/*
        share_threshold: true
        rate_limit: {unit: hour, requests_per_unit: 3}
  - key: free
    rate_limit: {unlimited: true}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: class
    value: read
    descriptors:
      - key: user
        rate_limit: {name: read, unit: hour, requests_per_unit: 5}
  - key: endpoint
    value: export
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 10, replaces: [{name: read}]}
`

// A limit admits requests_per_unit in each unit, and responses tell the rest, as the reference does.
func TestLimit(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, now *clock) {
		c, _ := open(t, b, config, envoylimit.Config{})
		for i := range 20 {
			res := c.ask(desc("user=ann"))
			want(t, res, isOK, fmt.Sprintf("OK %d", 19-i))
			s := res.GetStatuses()[0]
			if l := s.GetCurrentLimit(); l.GetRequestsPerUnit() != 20 || l.GetUnit() != pb.RateLimitResponse_RateLimit_MINUTE {
				t.Errorf("%v", l)
			}
			if s.GetDurationUntilReset().GetSeconds() != 30 { // windows are those of the wall clock
				t.Errorf("reset in %v", s.GetDurationUntilReset())
			}
		}
		for range 5 {
			res := c.ask(desc("user=ann"))
			want(t, res, over, "OVER_LIMIT 0")
			if s := res.GetStatuses()[0]; s.GetDurationUntilReset().GetSeconds() != 30 {
				t.Errorf("reset in %v", s.GetDurationUntilReset())
			}
		}
		want(t, c.ask(desc("user=bob")), isOK, "OK 19")
		now.advance(30 * time.Second)
		want(t, c.ask(desc("user=ann")), isOK, "OK 19")
	})
}

func TestUnits(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, now *clock) {
		var text strings.Builder
		text.WriteString("domain: web\ndescriptors:\n")
		units := map[string]time.Duration{
			"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
			"month": 30 * 24 * time.Hour, "year": 365 * 24 * time.Hour,
		}
		for unit := range units {
			fmt.Fprintf(&text, "  - {key: %s, rate_limit: {unit: %s, requests_per_unit: 1}}\n", unit, unit)
		}
		c, _ := open(t, b, text.String(), envoylimit.Config{})
		for _, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} { // a year is over before the next
			length := int64(units[unit] / time.Second)
			reset := length - now.now().Unix()%length // as the reference has it
			res := c.ask(desc(unit + "=a"))
			want(t, res, isOK, "OK 0")
			if got := res.GetStatuses()[0].GetDurationUntilReset().GetSeconds(); got != reset {
				t.Errorf("%s: reset in %d, not %d", unit, got, reset)
			}
			want(t, c.ask(desc(unit+"=a")), over, "OVER_LIMIT 0")
			now.advance(time.Duration(reset)*time.Second - time.Millisecond)
			want(t, c.ask(desc(unit+"=a")), over, "OVER_LIMIT 0")
			now.advance(time.Millisecond)
			want(t, c.ask(desc(unit+"=a")), isOK, "OK 0")
		}
	})
}

func TestMatching(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, _ := open(t, b, config, envoylimit.Config{})
		want(t, c.ask(desc("unknown=a")), isOK, "OK -")
		want(t, c.request(&pb.RateLimitRequest{Domain: "other", Descriptors: []*ratelimit.RateLimitDescriptor{desc("user=ann")}}), isOK, "OK -")
		want(t, c.ask(desc("user=vip")), isOK, "OK 49")
		want(t, c.ask(desc("user=internal")), isOK, "OK -")
		want(t, c.ask(desc("user=ann more=b")), isOK, "OK -")
		want(t, c.ask(desc("user=banned")), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("user=banned", hits(0))), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("user=banned", giveBack(1))), isOK, "OK 0")

		for i := range 3 { // each value of a wildcard has counts of its own, unless it shares them
			want(t, c.ask(desc("account=a path=/reports/x")), isOK, fmt.Sprintf("OK %d", 2-i))
			want(t, c.ask(desc(fmt.Sprintf("account=a path=/shared/%d", i))), isOK, fmt.Sprintf("OK %d", 2-i))
		}
		want(t, c.ask(desc("account=a path=/reports/x")), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("account=a path=/reports/y")), isOK, "OK 2")
		want(t, c.ask(desc("account=b path=/reports/x")), isOK, "OK 2")
		want(t, c.ask(desc("account=a path=/shared/new")), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("account=b path=/shared/new")), isOK, "OK 2")

		for range 30 {
			res := c.ask(desc("free=a"))
			want(t, res, isOK, "OK max")
			if res.GetStatuses()[0].GetLimitRemaining() != math.MaxUint32 {
				t.Error(res)
			}
		}
	})
}

// Several descriptors are charged all or none, in whatever order they come.
func TestAllOrNone(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, _ := open(t, b, config, envoylimit.Config{FullStatuses: true})
		for i := range 2 {
			want(t, c.ask(desc("user=ann"), desc("tenant=t")), isOK, fmt.Sprintf("OK %d", 19-i), fmt.Sprintf("OK %d", 1-i))
		}
		for i := range 10 {
			if i%2 == 0 {
				want(t, c.ask(desc("user=ann"), desc("unknown=x"), desc("tenant=t")), over, "OK 18", "OK -", "OVER_LIMIT 0")
			} else {
				want(t, c.ask(desc("tenant=t"), desc("user=ann")), over, "OVER_LIMIT 0", "OK 18")
			}
		}
		// Also where the costs differ.
		for range 5 {
			want(t, c.ask(desc("user=ann", hits(3)), desc("user=bob", hits(2)), desc("tenant=t")), over, "OK 18", "OK 20", "OVER_LIMIT 0")
		}
		want(t, c.ask(desc("user=ann", hits(3)), desc("user=bob", hits(2))), isOK, "OK 15", "OK 18")
		want(t, c.ask(desc("user=ann", hits(3)), desc("user=bob", hits(19))), over, "OK 15", "OVER_LIMIT 18")
		want(t, c.ask(desc("user=ann"), desc("user=banned")), over, "OK 15", "OVER_LIMIT 0")
		// A descriptor that is listed twice is charged twice.
		want(t, c.ask(desc("user=ann", hits(8)), desc("user=ann", hits(8))), over, "OK 15", "OVER_LIMIT 7")
		want(t, c.ask(desc("user=ann"), desc("user=ann")), isOK, "OK 14", "OK 13")
		if left := c.left("user=ann"); left != 13 {
			t.Errorf("%d left", left)
		}
	})
}

// A denial is answered from the reply that denied, without a second call: what was not asked has no limit in its status.
func TestStatusesOfDenials(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisConfig(newClock()))
	c, _ := open(t, closed(t, b, err), config, envoylimit.Config{})
	want(t, c.ask(desc("tenant=t", hits(2))), isOK, "OK 0")
	c.ask(desc("user=ann"), desc("tenant=t")) // from now on the process knows which key is exhausted
	server.ResetStats(t)
	for range 10 {
		want(t, c.ask(desc("user=ann"), desc("tenant=t")), over, "OK -", "OVER_LIMIT 0")
	}
	if n := server.Stats(t)["evalsha"]; n != 10 {
		t.Errorf("%d script calls for 10 denied requests: %v", n, server.Stats(t))
	}
	want(t, c.ask(desc("user=ann"), desc("user=banned")), over, "OK -", "OVER_LIMIT 0")
	want(t, c.ask(desc("user=ann")), isOK, "OK 19")
}

func TestShadow(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, s := open(t, b, config, envoylimit.Config{FullStatuses: true})
		for _, left := range []string{"OK 1", "OK 0", "OK 0", "OK 0"} {
			want(t, c.ask(desc("tried=a")), isOK, left)
		}
		// A shadow denies nobody, and is charged for what is admitted only.
		want(t, c.ask(desc("tried=b"), desc("tenant=t", hits(2))), isOK, "OK 1", "OK 0")
		want(t, c.ask(desc("tried=b"), desc("tenant=t")), over, "OK 1", "OVER_LIMIT 0")
		want(t, c.ask(desc("tried=a"), desc("user=ann")), isOK, "OK 0", "OK 19")
		for n := range s.RuleStats() {
			if n.Key1 == "tried" && (n.Total != 7 || n.Within != 3 || n.Over != 3 || n.Shadow != 3) {
				t.Errorf("%+v", n)
			}
		}
		shadowed, all := open(t, b, config, envoylimit.Config{Shadow: true})
		for range 3 {
			want(t, shadowed.ask(desc("user=banned")), isOK, "OVER_LIMIT 0")
		}
		if n := all.Stats().Shadowed; n != 3 {
			t.Errorf("%d shadowed", n)
		}
	})
}

func TestReplaces(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, _ := open(t, b, config, envoylimit.Config{})
		want(t, c.ask(desc("class=read user=ann"), desc("endpoint=export user=ann")), isOK, "OK -", "OK 9")
		want(t, c.ask(desc("endpoint=export user=ann"), desc("class=read user=ann")), isOK, "OK 8", "OK -")
		want(t, c.ask(desc("class=read user=ann")), isOK, "OK 4") // untouched so far
		want(t, c.ask(desc("endpoint=export user=ann")), isOK, "OK 7")
	})
}

func TestHits(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, _ := open(t, b, config, envoylimit.Config{FullStatuses: true})
		with := func(addend uint32, d ...*ratelimit.RateLimitDescriptor) *pb.RateLimitResponse {
			return c.request(&pb.RateLimitRequest{Domain: "web", HitsAddend: addend, Descriptors: d})
		}
		want(t, with(0, desc("user=ann")), isOK, "OK 19")
		want(t, with(5, desc("user=ann")), isOK, "OK 14")
		want(t, with(5, desc("user=ann", hits(2)), desc("user=bob")), isOK, "OK 12", "OK 15")
		want(t, with(13, desc("user=ann")), over, "OVER_LIMIT 12") // and nothing is charged
		want(t, with(12, desc("user=ann")), isOK, "OK 0")
		want(t, with(21, desc("user=bob")), over, "OVER_LIMIT 15") // never fits
		want(t, c.ask(desc("user=bob", hits(math.MaxUint64))), over, "OVER_LIMIT 15")
		// Without hits it is a question.
		want(t, c.ask(desc("user=ann", hits(0))), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("user=bob", hits(0))), isOK, "OK 15")
		want(t, c.ask(desc("user=ann", hits(0)), desc("user=bob")), over, "OVER_LIMIT 0", "OK 15")
	})
}

// What is given back is at most what was charged in the window that runs.
func TestNegativeHits(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, now *clock) {
		c, _ := open(t, b, config, envoylimit.Config{FullStatuses: true})
		want(t, c.ask(desc("user=ann", giveBack(7))), isOK, "OK 20")
		want(t, c.ask(desc("user=ann", hits(15))), isOK, "OK 5")
		want(t, c.ask(desc("user=ann", giveBack(4))), isOK, "OK 9")
		want(t, c.ask(desc("user=ann", giveBack(math.MaxUint64))), isOK, "OK 20")
		for range 3 {
			want(t, c.ask(desc("user=ann", giveBack(20))), isOK, "OK 20")
		}
		for i := range 20 {
			want(t, c.ask(desc("user=ann")), isOK, fmt.Sprintf("OK %d", 19-i))
		}
		want(t, c.ask(desc("user=ann")), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("user=ann", giveBack(1)), desc("user=ann")), isOK, "OK 1", "OK 0")
		want(t, c.ask(desc("user=ann", giveBack(2)), desc("user=banned")), over, "OK 2", "OVER_LIMIT 0")
		now.advance(30 * time.Second)
		want(t, c.ask(desc("user=ann", giveBack(9))), isOK, "OK 20") // of the window before
		want(t, c.ask(desc("user=ann")), isOK, "OK 19")
		want(t, c.ask(desc("user=banned", giveBack(9))), isOK, "OK 0")
		want(t, c.ask(desc("unknown=a", giveBack(9))), isOK, "OK -")
	})
}

// Of a rolling window all that counts can be given back, whenever it was charged, and the newest first.
func TestNegativeHitsOfAll(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, now *clock) {
		c, _ := open(t, b, "domain: web\ndescriptors: [{key: rolling, rate_limit: {unit: minute, requests_per_unit: 10}, "+
			"sluice: {sliding: {precision: 1s}}}]", envoylimit.Config{})
		want(t, c.ask(desc("rolling=a", hits(5))), isOK, "OK 5")
		now.advance(20 * time.Second)
		want(t, c.ask(desc("rolling=a", hits(3))), isOK, "OK 2")
		want(t, c.ask(desc("rolling=a", giveBack(4))), isOK, "OK 6")
		now.advance(41 * time.Second)
		want(t, c.ask(desc("rolling=a")), isOK, "OK 9") // only what was left of the first five has left the window
		want(t, c.ask(desc("rolling=a", giveBack(4))), isOK, "OK 10")
	})
}

func TestOverride(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, _ *clock) {
		c, _ := open(t, b, config, envoylimit.Config{})
		limited := func(n uint32, unit typev3.RateLimitUnit) func(*ratelimit.RateLimitDescriptor) {
			return func(d *ratelimit.RateLimitDescriptor) {
				d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
			}
		}
		want(t, c.ask(desc("user=ann", hits(4))), isOK, "OK 16")
		res := c.ask(desc("user=ann", limited(6, typev3.RateLimitUnit_MINUTE))) // the same counts
		want(t, res, isOK, "OK 1")
		if l := res.GetStatuses()[0].GetCurrentLimit(); l.GetRequestsPerUnit() != 6 {
			t.Error(l)
		}
		want(t, c.ask(desc("unknown=a", limited(1, typev3.RateLimitUnit_DAY))), isOK, "OK 0")
		want(t, c.ask(desc("unknown=a", limited(1, typev3.RateLimitUnit_DAY))), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("unknown=b", limited(0, typev3.RateLimitUnit_DAY))), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("user=bob"), desc("user=bob", limited(5, typev3.RateLimitUnit_MINUTE))), isOK, "OK 19", "OK 3")
		_, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{
			Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{desc("a=b", limited(1, typev3.RateLimitUnit_UNKNOWN))},
		})
		if status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
	})
}

// What the reference can't express stands beside its members.
func TestExtensions(t *testing.T) {
	onAll(t, func(t *testing.T, b backend.Backend, now *clock) {
		c, _ := open(t, b, `
domain: web
sluice: {lease: {processes: 1}}
descriptors:
  - key: rolling
    rate_limit: {unit: minute, requests_per_unit: 10}
    sluice: {sliding: {precision: 1s}}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 2}
    sluice: {bucket: {burst: 6}}
  - key: tokens
    rate_limit: {unit: hour, requests_per_unit: 1000}
    sluice: {overrun: true}
`, envoylimit.Config{})
		want(t, c.ask(desc("rolling=a", hits(10))), isOK, "OK 0")
		now.advance(30 * time.Second) // the next minute of the clock
		want(t, c.ask(desc("rolling=a")), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("rolling=a", giveBack(3))), isOK, "OK 3")
		now.advance(31 * time.Second)
		want(t, c.ask(desc("rolling=a")), isOK, "OK 9")

		want(t, c.ask(desc("bucket=a", hits(6))), isOK, "OK 0")
		want(t, c.ask(desc("bucket=a")), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("bucket=a", giveBack(2))), isOK, "OK 2")
		now.advance(time.Second)
		want(t, c.ask(desc("bucket=a")), isOK, "OK 3")

		// The use of a model, which is known once it has answered: it is counted in full.
		want(t, c.ask(desc("tokens=a", hits(0))), isOK, "OK 1000")
		want(t, c.ask(desc("tokens=a", hits(900))), isOK, "OK 100")
		want(t, c.ask(desc("tokens=a", hits(0))), isOK, "OK 100")
		want(t, c.ask(desc("tokens=a", hits(5000)), desc("tokens=b", hits(300))), over, "OVER_LIMIT 0", "OK 700")
		want(t, c.ask(desc("tokens=a", hits(0))), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("tokens=b", hits(701))), over, "OVER_LIMIT 0")
		want(t, c.ask(desc("tokens=b", giveBack(500))), isOK, "OK 499") // of 1,001
		want(t, c.ask(desc("tokens=a", giveBack(4900))), isOK, "OK 0")  // of 5,900
		want(t, c.ask(desc("tokens=a", giveBack(100))), isOK, "OK 100")
	})
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	now := newClock()
	c, s := open(t, backends["memory"](t, now), config, envoylimit.Config{MaxDescriptors: 2})
	for _, req := range []*pb.RateLimitRequest{
		{},
		{Domain: "web"},
		{Descriptors: []*ratelimit.RateLimitDescriptor{desc("user=ann")}},
		{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{desc("user=a"), desc("user=b"), desc("user=c")}},
	} {
		if _, err := c.ShouldRateLimit(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", req, err)
		}
	}
	want(t, c.ask(desc(""), desc("user=a")), isOK, "OK -", "OK 19")
	if n := s.Stats().Invalid; n != 4 {
		t.Errorf("%d invalid", n)
	}
}
