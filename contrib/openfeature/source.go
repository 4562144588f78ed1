package openfeature

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"

	sdk "github.com/open-feature/go-sdk/openfeature"

	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/typednil"
)

// Client is what a source needs of an OpenFeature client. [sdk.Client] has it, and [sdk.IClient].
type Client interface {
	FloatValueDetails(ctx context.Context, flag string, defaultValue float64, evalCtx sdk.EvaluationContext, options ...sdk.Option) (sdk.FloatEvaluationDetails, error)
	AddHandler(event sdk.EventType, callback sdk.EventCallback)
	RemoveHandler(event sdk.EventType, callback sdk.EventCallback)
}

var _ Client = (*sdk.Client)(nil)

// Config configures a source. The zero value will do.
type Config struct {
	// Key is the flag's key in the feature management system. Empty: the name of the [featureflag.Flag], which also
	// chooses its keys and must not change.
	Key string

	// Version names the field of the flag's metadata that holds its version, a whole number from 1 to 2^38-1. Empty:
	// "version".
	Version string

	// Context is what the system may base its answer on: an environment, a region. It must be the same in all
	// processes that are to agree. The zero value is empty; the client's own context is added in any case.
	Context sdk.EvaluationContext
}

const (
	defaultVersion = "version"

	// noValue is what an evaluation answers that has no value. NaN would do, but providers may encode the default, and
	// JSON has no NaN.
	noValue = -1
)

// Source returns a source that evaluates a flag of type float with a client. The client stays the caller's. The source
// can't be written: [featureflag.Set] and the like return [featureflag.ErrReadOnly]. The error says that client is nil.
func Source(client Client, cfg Config) (featureflag.Watcher, error) {
	if typednil.Is(client) {
		return nil, errors.New("openfeature: client is nil")
	}
	return &source{
		client:  client,
		key:     cfg.Key,
		version: cmp.Or(cfg.Version, defaultVersion),
		context: cfg.Context,
		latest:  make(map[string]uint64),
	}, nil
}

type source struct {
	client       Client
	key, version string
	context      sdk.EvaluationContext

	mu     sync.Mutex        // guards latest
	latest map[string]uint64 // the last version of each flag that had one, by key
}

// Load evaluates the flag.
func (s *source) Load(ctx context.Context, name string) (featureflag.Value, error) {
	key := cmp.Or(s.key, name)
	details, err := s.client.FloatValueDetails(ctx, key, noValue, s.context)
	if err = failed(ctx, details, err); err != nil {
		return featureflag.Value{}, fmt.Errorf("openfeature: flag %q: %w", key, err)
	}
	v, err := s.value(key, details)
	if err != nil {
		return featureflag.Value{}, fmt.Errorf("openfeature: flag %q: %w", key, err)
	}
	return v, nil
}

// failed is the error of an evaluation, in whatever way it tells it. The SDK keeps an error's text only, so what callers
// ask for is added again.
func failed(ctx context.Context, details sdk.FloatEvaluationDetails, err error) error {
	if err == nil && (details.ErrorCode != "" || details.Reason == sdk.ErrorReason) {
		err = fmt.Errorf("%s: %s", cmp.Or(details.ErrorCode, sdk.GeneralCode), details.ErrorMessage)
	}
	switch {
	case err == nil:
		return nil
	case details.ErrorCode == sdk.FlagNotFoundCode && !errors.Is(err, featureflag.ErrNotFound):
		return fmt.Errorf("%w: %w", featureflag.ErrNotFound, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// value reads an evaluation that didn't fail.
func (s *source) value(key string, details sdk.FloatEvaluationDetails) (featureflag.Value, error) {
	v := featureflag.Value{Percent: details.Value}
	if details.Value == noValue {
		if details.Reason != sdk.DisabledReason {
			return v, fmt.Errorf("the provider has no value, reason %q", details.Reason)
		}
		v.Percent, v.Killed = 0, true
	}
	field, found := details.FlagMetadata[s.version]
	version, ok := whole(field)
	if found && !ok {
		return v, fmt.Errorf("metadata %q = %v: must be a whole number from 1", s.version, field)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	latest, versioned := s.latest[key]
	switch {
	case found:
		v.Version = version
		s.latest[key] = version
	case versioned && v.Killed:
		// Many providers have no metadata for a disabled flag. A kill without a larger version is taken, and ends with
		// the next value. Without any version it would count as a change that only this process numbers, and the next
		// version of the system's could be below that.
		v.Version = latest
	case versioned:
		return v, fmt.Errorf("metadata %q is missing, and was %d before", s.version, latest)
	}
	return v, nil
}

// whole reads a whole number from 1, in any of the types that providers have for it: those that speak JSON have floats.
func whole(field any) (uint64, bool) {
	signed := func(n int64) (uint64, bool) { return uint64(n), n >= 1 }
	unsigned := func(n uint64) (uint64, bool) { return n, n >= 1 }
	switch n := field.(type) {
	case int:
		return signed(int64(n))
	case int8:
		return signed(int64(n))
	case int16:
		return signed(int64(n))
	case int32:
		return signed(int64(n))
	case int64:
		return signed(n)
	case uint:
		return unsigned(uint64(n))
	case uint8:
		return unsigned(uint64(n))
	case uint16:
		return unsigned(uint64(n))
	case uint32:
		return unsigned(uint64(n))
	case uint64:
		return unsigned(n)
	case float32:
		return whole(float64(n))
	case float64:
		const exact = 1 << 53 // above, a float64 has lost digits
		return uint64(n), n >= 1 && n <= exact && n == math.Trunc(n)
	case json.Number:
		u, err := strconv.ParseUint(n.String(), 10, 64)
		return u, err == nil && u >= 1
	}
	return 0, false
}

// watched are the events after which the provider may answer differently. It is ready when it starts, when it comes
// back from an error, and when another one takes its place.
var watched = []sdk.EventType{sdk.ProviderConfigChange, sdk.ProviderReady}

// Watch calls changed at every event. The flags that an event names don't matter: a load costs little, and a provider
// that names too few would cost a change.
func (s *source) Watch(ctx context.Context, _ string, changed func()) error {
	// The SDK runs handlers in goroutines of its own, some after they were removed, and one under its lock: they only
	// leave a mark.
	events := make(chan struct{}, 1)
	handler := func(sdk.EventDetails) {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	for _, event := range watched {
		s.client.AddHandler(event, &handler)
		defer s.client.RemoveHandler(event, &handler)
	}
	for changed(); ; changed() { // the first time for what was missed before
		select {
		case <-events:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
