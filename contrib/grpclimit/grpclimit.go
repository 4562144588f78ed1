package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Call is a call that is to be limited, or a message of one.
type Call struct {
	Method  string // the full name, such as "/pkg.Service/Method"
	Request any    // a unary call's request; nil when a stream opens; for MessageCost the message
}

// Config configures an Interceptor. Key is required; the zero value of everything else is a documented default.
type Config struct {
	// Key returns the key that a call counts against.
	Key KeyFunc

	// Also are further keys that must admit the call too, such as the address beside the user; each has the policy that the
	// Throttler's PolicyFor gives it. Key and Also may be in any order, and equal keys count once. See
	// throttler.Throttler.AllowAll for what that promises.
	Also []KeyFunc

	// Methods says what is different for a method ("/pkg.Service/Method") or for all others of a service
	// ("/pkg.Service/*"). Of two that match, the method's own applies, and nothing of the service's. Policies by method
	// are made by PolicyFor. Nil: all are alike.
	Methods map[string]Method

	// Cost is what a call costs, from 1, unless its Method says so. Nil: 1 for each.
	Cost func(ctx context.Context, c Call) int64

	// MessageCost is what each message costs that a client sends on a stream, from 0 for none, beside what the stream
	// cost when it opened. It is charged when the handler receives it; a denial is the error of that receive and of all
	// that follow. The one message of a stream that only the server goes on with counts too. Nil: 0 for each.
	MessageCost func(ctx context.Context, c Call) int64

	// Refund says whether a call that ended with this code is given back what it cost, but for Keep. A client who can bring the
	// code about whenever it likes, as it can Canceled, NotFound or InvalidArgument, has as many calls as it wants unless
	// something is kept. The status waits for that: it is
	// one more call to the backend, of a second at most. A panic that passes counts as codes.Internal. With a backend
	// that is no backend.Refunder nothing is given back, and Refund is not called. If nil, nothing is given back.
	Refund func(code codes.Code) bool

	// Keep is what a call that Refund gives back costs all the same; one that costs no more gets nothing back. With it a client
	// gets at most Max / Keep calls from a limit of Max. Zero: all goes back.
	Keep int64

	// RefundAlso gives back to the keys of Also, too. False: they stay charged in full.
	RefundAlso bool

	// NoKey is the code for a call that has no key, or more than one of a kind: InvalidArgument, Unauthenticated or
	// PermissionDenied. Zero: InvalidArgument.
	NoKey codes.Code

	// MaxPushback is the longest wait that a denial asks of the retries which grpc makes by itself, while the
	// application waits and knows nothing. What takes longer, or longer than the call has left, stops them. RetryInfo
	// isn't bounded by it. Zero: 1 minute. Negative: no pushback is sent, and grpc retries by its own backoff.
	MaxPushback time.Duration

	// NoMetadata leaves the limits out of the metadata.
	NoMetadata bool

	// OnError gets what a client doesn't see: why there is no verdict, unless the call's context ended, and why a
	// charge could not be given back, which then stays until its windows end. If nil, it is not reported.
	OnError func(ctx context.Context, c Call, err error)
}

func (c Config) withDefaults() Config {
	if c.NoKey == codes.OK {
		c.NoKey = codes.InvalidArgument
	}
	if c.MaxPushback == 0 {
		c.MaxPushback = time.Minute
	}
	return c
}

// validate reports every problem at once.
func (c Config) validate() error {
	var bad fielderrors.List
	if c.Key == nil {
		bad.Add("Key", "nil", "must not be nil")
	}
	for i, key := range c.Also {
		if key == nil {
			bad.Add("Also["+strconv.Itoa(i)+"]", "nil", "must not be nil")
		}
	}
	if c.Keep < 0 {
		bad.Add("Keep", c.Keep, "must not be negative")
	}
	if c.Keep != 0 && c.Refund == nil {
		bad.Add("Keep", c.Keep, "is for Refund only")
	}
	if c.RefundAlso && (c.Refund == nil || len(c.Also) == 0) {
		bad.Add("RefundAlso", "true", "is for Refund and Also only")
	}
	switch c.NoKey {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied:
	default:
		bad.Add("NoKey", c.NoKey, "must be InvalidArgument, Unauthenticated or PermissionDenied")
	}
	errs := []error{bad.Err()}
	for _, pattern := range slices.Sorted(maps.Keys(c.Methods)) {
		errs = append(errs, c.Methods[pattern].validate(pattern))
	}
	return errors.Join(errs...)
}

// Interceptor limits the calls of the servers that it is given to, as Unary and Stream.
type Interceptor struct {
	cfg     Config
	methods byMethod[Method]
	all     Method // those that have none of their own
	keys    []KeyFunc
}

// New checks the configuration, and reports every problem in it at once. It leaves t open.
func New(t *throttler.Throttler, cfg Config) (*Interceptor, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if t == nil {
		err = errors.Join(&limit.Error{Field: "throttler", Value: "nil", Bound: "must not be nil"}, err)
	}
	methods, bad := newByMethod(cfg.Methods)
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("grpclimit: %w", err)
	}
	return &Interceptor{
		cfg: cfg, methods: methods, all: Method{Throttler: t}, keys: append([]KeyFunc{cfg.Key}, cfg.Also...),
	}, nil
}

var (
	_ grpc.UnaryServerInterceptor  = (*Interceptor)(nil).Unary
	_ grpc.StreamServerInterceptor = (*Interceptor)(nil).Stream
)

// Unary asks first and calls the handler only if the call is admitted. It is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	m := i.method(info.FullMethod)
	if m.Exempt {
		return handler(ctx, req)
	}
	c, answer := Call{Method: info.FullMethod, Request: req}, unaryAnswer{ctx}
	a, err := i.admit(ctx, c, m, answer)
	if err != nil {
		return nil, err
	}
	code := codes.Internal // of a panic
	defer func() { i.settle(ctx, c, a, code) }()
	resp, err := handler(context.WithValue(ctx, decisionKey{}, a.decision), req)
	code = codeOf(err)
	// Not before: headers keep the client from retrying when the handler fails.
	tell(answer, a.limits, err == nil)
	return resp, err
}

type decisionKey struct{}

// FromContext returns the decision on the call whose context ctx is or comes from; of a stream, that on its opening.
func FromContext(ctx context.Context) (throttler.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(throttler.Decision)
	return d, ok
}

// admission is a call that goes on.
type admission struct {
	decision throttler.Decision
	limits   metadata.MD
	keys     []string
	held     *throttler.Reservation // nil if nothing can be given back
}

// admit charges a call. The error is the status of a refusal; its trailer is set.
func (i *Interceptor) admit(ctx context.Context, c Call, m Method, w answer) (*admission, error) {
	keys, err := i.keysOf(ctx, c)
	if err != nil {
		return nil, i.noVerdict(ctx, c, err)
	}
	cost := i.cost(ctx, c, m)
	d, held, err := i.charge(ctx, m.Throttler, keys, cost)
	if err := i.refusal(ctx, c, w, &d, err); err != nil {
		return nil, err
	}
	return &admission{decision: d, limits: i.limits(&d), keys: keys, held: held}, nil
}

func (i *Interceptor) keysOf(ctx context.Context, c Call) ([]string, error) {
	keys := make([]string, 0, len(i.keys))
	for _, key := range i.keys {
		k, err := key(ctx, c)
		if err == nil && k == "" {
			err = ErrNoKey
		}
		if err != nil {
			return nil, &keyError{err}
		}
		if !slices.Contains(keys, k) { // which would be charged twice
			keys = append(keys, k)
		}
	}
	return keys, nil
}

func (i *Interceptor) cost(ctx context.Context, c Call, m Method) int64 {
	switch {
	case m.Cost != 0:
		return m.Cost
	case i.cfg.Cost != nil:
		return clampCost(i.cfg.Cost(ctx, c))
	}
	return 1
}

// clampCost keeps what a client can drive beyond all limits a denial: it is not the server's mistake.
func clampCost(cost int64) int64 { return min(cost, limit.MaxCount) }

// charge charges every key, or none.
func (i *Interceptor) charge(
	ctx context.Context, t *throttler.Throttler, keys []string, cost int64,
) (throttler.Decision, *throttler.Reservation, error) {
	if i.cfg.Refund != nil {
		held, err := t.ReserveAll(ctx, keys, cost)
		switch {
		case err == nil:
			return held.Decision(), held, nil
		case !errors.Is(err, throttler.ErrUnsupported):
			return throttler.Decision{}, nil, err
		}
	}
	d, err := allow(ctx, t, keys, cost)
	return d, nil, err
}

// allow is charge for what is never given back.
func allow(ctx context.Context, t *throttler.Throttler, keys []string, cost int64) (throttler.Decision, error) {
	if len(keys) == 1 {
		return t.AllowN(ctx, keys[0], cost)
	}
	return t.AllowAll(ctx, keys, cost)
}
