package envoylimit_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that only the test moves.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	// Half a minute into a minute, far from what any host's clock says.
	c.micros.Store(time.Date(2031, 5, 7, 9, 20, 30, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// backends are what limits are counted in, each with a clock of the test.
var backends = map[string]func(testing.TB, *clock) backend.Backend{
	"memory": func(t testing.TB, c *clock) backend.Backend {
		b, err := memory.New(memory.Config{Now: c.now})
		return closed(t, b, err)
	},
	"redis": func(t testing.TB, c *clock) backend.Backend {
		b, err := redisbackend.Open(&redis.Options{Addr: testserver.Redis(t).Addr}, redisConfig(c))
		return closed(t, b, err)
	},
	"groups": func(t testing.TB, c *clock) backend.Backend {
		b, err := router.Open(router.Topology{Epoch: 1, Groups: groups(t, 3)}, router.Config{Backend: redisConfig(c)})
		return closed(t, b, err)
	},
}

// redisConfig is patient: a test machine is slow, and not the subject.
func redisConfig(c *clock) redisbackend.Config {
	cfg := redisbackend.Config{Timeout: 5 * time.Second}
	if c != nil {
		cfg.Now = c.now
	}
	return cfg
}

func groups(t testing.TB, n int) (all []router.Group) {
	for i := range n {
		all = append(all, router.Group{Name: "g" + strconv.Itoa(i), Primary: testserver.Redis(t).Addr})
	}
	return all
}

func closed[B backend.Backend](t testing.TB, b B, err error) backend.Backend {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// onAll runs a test on every backend.
func onAll(t *testing.T, f func(*testing.T, backend.Backend, *clock)) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			f(t, open(t, c), c)
		})
	}
}

func parse(t testing.TB, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse([]rules.File{{Name: "test.yaml", Text: []byte(text)}}, rules.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newService is a Service of a file, closed by the test.
func newService(t testing.TB, b backend.Backend, text string, cfg envoylimit.Config) *envoylimit.Service {
	t.Helper()
	cfg.Rules, cfg.Throttler.Backend = parse(t, text), b
	s, err := envoylimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client is what gateways have: a generated client that knows the proto and nothing else.
type client struct {
	t testing.TB
	pb.RateLimitServiceClient
}

func dial(t testing.TB, s *envoylimit.Service) client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, done := grpc.NewServer(), make(chan error, 1)
	pb.RegisterRateLimitServiceServer(server, s)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return client{t, pb.NewRateLimitServiceClient(conn)}
}

// open is a client of a Service of a file.
func open(t testing.TB, b backend.Backend, text string, cfg envoylimit.Config) (client, *envoylimit.Service) {
	t.Helper()
	s := newService(t, b, text, cfg)
	return dial(t, s), s
}

// ask asks about descriptors of the domain web.
func (c client) ask(descriptors ...*ratelimit.RateLimitDescriptor) *pb.RateLimitResponse {
	c.t.Helper()
	return c.request(&pb.RateLimitRequest{Domain: "web", Descriptors: descriptors})
}

func (c client) request(req *pb.RateLimitRequest) *pb.RateLimitResponse {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	res, err := c.ShouldRateLimit(ctx, req)
	if err != nil {
		c.t.Fatal(err)
	}
	if len(res.GetStatuses()) != len(req.GetDescriptors()) {
		c.t.Fatalf("%d statuses for %d descriptors", len(res.GetStatuses()), len(req.GetDescriptors()))
	}
	return res
}

// desc reads "key=value key=value".
func desc(text string, change ...func(*ratelimit.RateLimitDescriptor)) *ratelimit.RateLimitDescriptor {
	d := &ratelimit.RateLimitDescriptor{}
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	for _, f := range change {
		f(d)
	}
	return d
}

func hits(n uint64) func(*ratelimit.RateLimitDescriptor) {
	return func(d *ratelimit.RateLimitDescriptor) { d.HitsAddend = wrapperspb.UInt64(n) }
}

func giveBack(n uint64) func(*ratelimit.RateLimitDescriptor) {
	return func(d *ratelimit.RateLimitDescriptor) { d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), true }
}

const (
	isOK = pb.RateLimitResponse_OK
	over = pb.RateLimitResponse_OVER_LIMIT
)

// want checks the overall code, and of each status "code remaining", or "code -" without a limit.
func want(t testing.TB, res *pb.RateLimitResponse, overall pb.RateLimitResponse_Code, statuses ...string) {
	t.Helper()
	var got []string
	for _, s := range res.GetStatuses() {
		text := s.GetCode().String()
		switch {
		case s.GetCurrentLimit() != nil:
			text += " " + strconv.Itoa(int(s.GetLimitRemaining()))
		case s.GetLimitRemaining() > 0:
			text += " max"
		default:
			text += " -"
		}
		got = append(got, text)
	}
	if res.GetOverallCode() != overall || strings.Join(got, ", ") != strings.Join(statuses, ", ") {
		t.Errorf("%s: %s; want %s: %s", res.GetOverallCode(), strings.Join(got, ", "), overall, strings.Join(statuses, ", "))
	}
}

// left is what is left of a descriptor, without a charge.
func (c client) left(text string) int {
	c.t.Helper()
	return int(c.ask(desc(text, hits(0))).GetStatuses()[0].GetLimitRemaining())
}
