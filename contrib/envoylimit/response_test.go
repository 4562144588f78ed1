package envoylimit_test

import (
	"math"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-go/sluice/contrib/envoylimit"
)

func headers(res *pb.RateLimitResponse) (all string) {
	for _, h := range res.GetResponseHeadersToAdd() {
		all += h.GetKey() + ": " + h.GetValue() + "\n"
	}
	return all
}

// Headers are about the limit with the least left, or the one that denies.
func TestHeaders(t *testing.T) {
	t.Parallel()
	c, _ := open(t, backends["memory"](t, newClock()), config, envoylimit.Config{Headers: envoylimit.DefaultHeaders})
	for _, tt := range []struct {
		descriptors []*ratelimit.RateLimitDescriptor
		want        string
	}{
		{[]*ratelimit.RateLimitDescriptor{desc("unknown=a")}, ""},
		{[]*ratelimit.RateLimitDescriptor{desc("free=a")}, ""},
		{[]*ratelimit.RateLimitDescriptor{desc("user=ann")}, "RateLimit-Limit: 20\nRateLimit-Remaining: 19\nRateLimit-Reset: 30\n"},
		{[]*ratelimit.RateLimitDescriptor{desc("user=ann"), desc("tenant=t")}, "RateLimit-Limit: 2\nRateLimit-Remaining: 1\nRateLimit-Reset: 2370\n"},
		{[]*ratelimit.RateLimitDescriptor{desc("user=ann", hits(19)), desc("tenant=t")}, "RateLimit-Limit: 20\nRateLimit-Remaining: 18\nRateLimit-Reset: 30\n"},
	} {
		if got := headers(c.ask(tt.descriptors...)); got != tt.want {
			t.Errorf("%v: %q", tt.descriptors, got)
		}
	}
	draft, _ := open(t, backends["memory"](t, newClock()), config, envoylimit.Config{Headers: envoylimit.Headers{IETF: true}})
	got := headers(draft.ask(desc("user=ann"), desc("class=read user=ann")))
	const want = "RateLimit-Policy: \"20/1m@aligned\";q=20;w=60, \"read\";q=5;w=3600\n" +
		"RateLimit: \"20/1m@aligned\";r=19;t=30, \"read\";r=4;t=2370\n"
	if got != want {
		t.Errorf("%q", got)
	}
}

// Above a quota a response is OK, and its metadata name the descriptor.
func TestQuotaAndMetadata(t *testing.T) {
	t.Parallel()
	c, _ := open(t, backends["memory"](t, newClock()), config, envoylimit.Config{Metadata: true})
	req := &pb.RateLimitRequest{Domain: "web", HitsAddend: 2, Descriptors: []*ratelimit.RateLimitDescriptor{desc("user=ann"), desc("quota=a b=c", hits(1)), desc("quota=a")}}
	want(t, c.request(req), isOK, "OK 18", "OK -", "OK 0")
	res := c.request(req)
	want(t, res, isOK, "OK 16", "OK -", "OK 0")
	var shown structpb.Struct
	if err := protojson.Unmarshal([]byte(`{
		"domain": "web", "hitsAddend": 2, "quotaModeEnabled": true, "quotaModeViolations": [2],
		"descriptors": [{"entries": ["user=ann"]}, {"entries": ["quota=a", "b=c"], "hitsAddend": 1}, {"entries": ["quota=a"]}]
	}`), &shown); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(res.GetDynamicMetadata(), &shown) {
		t.Errorf("%v", res.GetDynamicMetadata())
	}
	all, _ := open(t, backends["memory"](t, newClock()), config, envoylimit.Config{Quota: true})
	want(t, all.ask(desc("tenant=t", hits(2))), isOK, "OK 0")
	want(t, all.ask(desc("tenant=t")), isOK, "OK 0")
}

func TestRuleStats(t *testing.T) {
	t.Parallel()
	c, s := open(t, backends["memory"](t, newClock()), `
domain: web
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: path
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: late
    rate_limit: {unit: day, requests_per_unit: 10}
`, envoylimit.Config{MaxSeries: 3})
	for range 4 {
		c.ask(desc("user=ann", hits(3)))
	}
	c.ask(desc("user=bob", hits(0)))
	c.ask(desc("user=ann"), desc("path=a", hits(11)))
	for _, path := range []string{"path=a", "path=b", "path=c", "path=d", "path=e"} { // more than there is room for
		c.ask(desc(path))
	}
	for range 2 {
		c.ask(desc("late=a", hits(math.MaxUint64)))
	}
	var got []envoylimit.RuleStats
	for n := range s.RuleStats() {
		got = append(got, n)
	}
	want := []envoylimit.RuleStats{
		{Domain: "web", Key1: "_OTHER", RequestsPerUnit: 10, Unit: "day", Total: 2, Within: 2},
		{Domain: "web", Key1: "late", RequestsPerUnit: 10, Unit: "day", Total: 2 * math.MaxUint32, Over: 2 * math.MaxUint32},
		{Domain: "web", Key1: "path_a", RequestsPerUnit: 10, Unit: "day", Total: 12, Within: 1, Over: 11},
		{Domain: "web", Key1: "path_b", RequestsPerUnit: 10, Unit: "day", Total: 1, Within: 1},
		{Domain: "web", Key1: "path_c", RequestsPerUnit: 10, Unit: "day", Total: 1, Within: 1},
		{Domain: "web", Key1: "user", RequestsPerUnit: 10, Unit: "hour", Total: 13, Within: 9, Over: 3, Near: 1},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v; want %+v", got[i], want[i])
		}
	}
}
