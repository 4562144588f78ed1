package grpclimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerMinute(1))})
	for _, test := range []struct {
		name string
		th   *throttler.Throttler
		cfg  grpclimit.Config
		want string // of the error
	}{
		{"nothing", nil, grpclimit.Config{}, `throttler = nil: must not be nil`},
		{"no key", th, grpclimit.Config{}, `Key = nil: must not be nil`},
		{"no second key", th, grpclimit.Config{Key: secretKey, Also: []grpclimit.KeyFunc{secretKey, nil}}, `Also[1] = nil`},
		{"a code", th, grpclimit.Config{Key: secretKey, NoKey: codes.NotFound}, `NoKey = NotFound: must be InvalidArgument, Una`},
		{"an empty pattern", th, methods("", grpclimit.Method{}), `method = "": must be like "/pkg.Service/Method"`},
		{"no slash", th, methods("pkg.Service/Method", grpclimit.Method{}), `method = "pkg.Service/Method"`},
		{"no method", th, methods("/pkg.Service/", grpclimit.Method{}), `method = "/pkg.Service/"`},
		{"no service", th, methods("/Method", grpclimit.Method{}), `method = "/Method"`},
		{"an empty service", th, methods("//Method", grpclimit.Method{}), `method = "//Method"`},
		{"all", th, methods("*", grpclimit.Method{}), `method = "*"`},
		{"part of a method", th, methods("/pkg.Service/Get*", grpclimit.Method{}), `method = "/pkg.Service/Get*"`},
		{"part of a service", th, methods("/pkg.*/Get", grpclimit.Method{}), `method = "/pkg.*/Get"`},
		{"a cost", th, methods("/a/b", grpclimit.Method{Cost: -1}), `Methods["/a/b"].Cost = -1: must be from 0 to 9007199254740991`},
		{"a large cost", th, methods("/a/b", grpclimit.Method{Cost: limit.MaxCount + 1}), `Methods["/a/b"].Cost = 9007199254740992`},
		{"exempt with a cost", th, methods("/a/b", grpclimit.Method{Exempt: true, Cost: 1}), `Methods["/a/b"] = exempt: must have neither`},
		{"exempt with limits", th, methods("/a/b", grpclimit.Method{Exempt: true, Throttler: th}), `Methods["/a/b"] = exempt`},
	} {
		_, err := grpclimit.New(test.th, test.cfg)
		var invalid *limit.Error
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "grpclimit: ") {
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
	_, err := grpclimit.New(nil, grpclimit.Config{Methods: map[string]grpclimit.Method{"x": {Cost: -1}}})
	if got := strings.Count(err.Error(), "\n") + 1; got != 4 {
		t.Errorf("%v: names %d problems, want 4", err, got)
	}
}

func methods(pattern string, m grpclimit.Method) grpclimit.Config {
	return grpclimit.Config{Key: secretKey, Methods: map[string]grpclimit.Method{pattern: m}}
}

// ask makes a call of a method and returns its code.
func ask(t testing.TB, c pb.TestServiceClient, method string) codes.Code {
	t.Helper()
	var err error
	switch method {
	case unaryCall:
		_, err = c.UnaryCall(t.Context(), &pb.SimpleRequest{})
	case emptyCall:
		_, err = c.EmptyCall(t.Context(), &pb.Empty{})
	case receiveMany:
		_, _, err = output(t.Context(), c)
	case sendMany:
		stream, failed := c.StreamingInputCall(t.Context())
		if err = failed; err == nil {
			_, err = stream.CloseAndRecv()
		}
	default:
		t.Fatal(method)
	}
	return status.Code(err)
}

// TestMethods charges what stands in the table, by who decides.
func TestMethods(t *testing.T) {
	t.Parallel()
	type cost map[string]int64 // by method
	for _, test := range []struct {
		name        string
		methods     func(other *throttler.Throttler) map[string]grpclimit.Method
		mine, other cost
	}{
		{"none", func(*throttler.Throttler) map[string]grpclimit.Method { return nil },
			cost{unaryCall: 7, emptyCall: 7, receiveMany: 7}, cost{}},
		{"costs", func(*throttler.Throttler) map[string]grpclimit.Method {
			return map[string]grpclimit.Method{unaryCall: {Cost: 2}, receiveMany: {Cost: 3}}
		}, cost{unaryCall: 2, emptyCall: 7, receiveMany: 3}, cost{}},
		{"a service, and methods of it", func(other *throttler.Throttler) map[string]grpclimit.Method {
			return map[string]grpclimit.Method{allMethods: {Throttler: other, Cost: 2}, unaryCall: {Exempt: true}, receiveMany: {}}
		}, cost{receiveMany: 7}, cost{emptyCall: 2}},
		{"all exempt but one", func(*throttler.Throttler) map[string]grpclimit.Method {
			return map[string]grpclimit.Method{allMethods: {Exempt: true}, unaryCall: {}}
		}, cost{unaryCall: 7}, cost{}},
		{"others", func(other *throttler.Throttler) map[string]grpclimit.Method {
			return map[string]grpclimit.Method{
				"/grpc.testing.Test/*": {Exempt: true}, "/grpc.testing.TestServiceX/*": {Exempt: true}, "/UnaryCall/*": {Exempt: true},
				"/grpc.testing.testservice/*": {Exempt: true}, "/grpc.testing.TestService/unarycall": {Exempt: true},
			}
		}, cost{unaryCall: 7, emptyCall: 7, receiveMany: 7}, cost{}},
	} {
		for _, method := range []string{unaryCall, emptyCall, receiveMany} {
			mine := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(10))})
			other := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(10))})
			c := client(t, &service{}, newLimits(t, mine, grpclimit.Config{
				Methods: test.methods(other), Cost: func(context.Context, grpclimit.Call) int64 { return 7 },
			}))
			if got := ask(t, c, method); got != codes.OK {
				t.Errorf("%s: %s: %v", test.name, method, got)
			}
			if got, want := used(t, mine, secret), test.mine[method]; got != want {
				t.Errorf("%s: %s: %d used, want %d", test.name, method, got, want)
			}
			if got, want := used(t, other, secret), test.other[method]; got != want {
				t.Errorf("%s: %s: %d used of the other, want %d", test.name, method, got, want)
			}
		}
	}
}

// An exempt method needs no key and is told nothing.
func TestExempt(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(1))})
	c := client(t, &service{}, newLimits(t, th, grpclimit.Config{
		Key:     func(context.Context, grpclimit.Call) (string, error) { return "", grpclimit.ErrNoKey },
		Methods: map[string]grpclimit.Method{receiveMany: {Exempt: true}},
	}))
	for range 3 {
		if header, trailer, err := output(t.Context(), c); err != nil || fields(header) != none || fields(trailer) != none {
			t.Errorf("%v, header %q, trailer %q", err, fields(header), fields(trailer))
		}
	}
	if n := b.calls.Load(); n != 0 {
		t.Errorf("%d calls reached the backend", n)
	}
	if got := ask(t, c, unaryCall); got != codes.InvalidArgument {
		t.Errorf("not exempt: %v", got)
	}
}

// The function that a cost and a key are asked of sees the request.
func TestCallHasTheRequest(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(10))})
	c := client(t, &service{}, newLimits(t, th, grpclimit.Config{
		Key: func(_ context.Context, c grpclimit.Call) (string, error) {
			if c.Method == unaryCall {
				return string(c.Request.(*pb.SimpleRequest).GetPayload().GetBody()), nil
			}
			if c.Request != nil {
				t.Errorf("%s: a request of %T, want none", c.Method, c.Request)
			}
			return "stream", nil
		},
		Cost: func(_ context.Context, c grpclimit.Call) int64 {
			if c.Method == unaryCall {
				return int64(c.Request.(*pb.SimpleRequest).GetResponseSize())
			}
			return 2
		},
	}))
	_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 3, Payload: &pb.Payload{Body: []byte("tenant")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, c, sendMany); got != codes.OK {
		t.Fatal(got)
	}
	if tenant, stream := used(t, th, "tenant"), used(t, th, "stream"); tenant != 3 || stream != 2 {
		t.Errorf("%d and %d used, want 3 and 2", tenant, stream)
	}
}

func TestPolicyFor(t *testing.T) {
	t.Parallel()
	policies := map[string]limit.Policy{
		emptyCall:   {Name: "empty", Limits: []limit.Limit{limit.PerHour(1)}},
		receiveMany: {Name: "empty", Limits: []limit.Limit{limit.PerHour(1)}}, // shares the counts
		allMethods:  {Name: "rest", Limits: []limit.Limit{limit.PerHour(2)}},
	}
	policyFor, err := grpclimit.PolicyFor(policies)
	if err != nil {
		t.Fatal(err)
	}
	policies[emptyCall].Limits[0].Max = 100 // is too late
	th := throttlertesting.New(t, throttler.Config{PolicyFor: policyFor, Policy: policy(limit.PerHour(5))})
	c := client(t, &service{}, newLimits(t, th, grpclimit.Config{}))
	for n, step := range []struct {
		method string
		want   codes.Code
	}{
		{emptyCall, codes.OK}, {receiveMany, codes.ResourceExhausted}, {emptyCall, codes.ResourceExhausted},
		{unaryCall, codes.OK}, {sendMany, codes.OK}, {unaryCall, codes.ResourceExhausted},
	} {
		if got := ask(t, c, step.method); got != step.want {
			t.Errorf("call %d, %s: %v, want %v", n+1, step.method, got, step.want)
		}
	}
	if got := used(t, th, secret); got != 0 {
		t.Errorf("%d used under the Throttler's own policy, want 0", got)
	}

	for _, test := range []struct {
		policies map[string]limit.Policy
		want     string
	}{
		{map[string]limit.Policy{"x": policy(limit.PerHour(1))}, `method = "x"`},
		{map[string]limit.Policy{"/a/b": {}}, `method "/a/b": `},
		{map[string]limit.Policy{"/a/b": policy(limit.PerHour(1)), "/a/*": policy(limit.PerHour(2))},
			`policy name = "test": must not be that of a different policy`},
	} {
		_, err := grpclimit.PolicyFor(test.policies)
		var invalid *limit.Error
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}
