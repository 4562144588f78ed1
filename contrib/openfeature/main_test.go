package openfeature_test

import (
	"context"
	"sync"
	"testing"
	"time"

	sdk "github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/sluice-go/sluice/contrib/openfeature"
	"github.com/sluice-go/sluice/featureflag"
)

const (
	soon  = 10 * time.Second     // long on the busiest machine
	never = time.Hour            // Refresh of what is pushed
	quick = 5 * time.Millisecond // Refresh of what is polled
)

// system is a feature management system of one's own for a test.
type system struct {
	t   testing.TB
	api *sdk.EvaluationAPI
	mem *memprovider.InMemoryProvider
}

// newSystem returns a system whose provider isn't set yet.
func newSystem(t testing.TB) *system {
	s := &system{t: t, api: isolated.NewAPI(), mem: memprovider.NewInMemoryProvider(nil)}
	t.Cleanup(func() { _ = s.api.Shutdown(context.Background()) })
	return s
}

// start sets the provider.
func (s *system) start() *system {
	s.t.Helper()
	if err := s.api.SetProviderAndWait(s.t.Context(), s.mem); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// answer is what the system says of a flag.
type answer struct {
	value    any // nil: there is no such variant
	metadata sdk.FlagMetadata
	disabled bool
}

// set changes the flag "use-redis", and tells who watches.
func (s *system) set(a answer) *system {
	evaluate := func(memprovider.InMemoryFlag, sdk.FlattenedContext) (any, sdk.ProviderResolutionDetail) {
		return a.value, sdk.ProviderResolutionDetail{Reason: sdk.StaticReason, FlagMetadata: a.metadata}
	}
	flag := memprovider.InMemoryFlag{State: memprovider.Enabled, ContextEvaluator: &evaluate}
	if a.disabled {
		flag.State = memprovider.Disabled
	}
	s.mem.UpdateFlags(map[string]memprovider.InMemoryFlag{"use-redis": flag})
	return s
}

// source returns a source on the system.
func (s *system) source(cfg openfeature.Config) featureflag.Watcher {
	s.t.Helper()
	return source(s.t, s.api.NewClient(), cfg)
}

func source(t testing.TB, client openfeature.Client, cfg openfeature.Config) featureflag.Watcher {
	t.Helper()
	src, err := openfeature.Source(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// version is the metadata of a flag that has a version.
func version(n any) sdk.FlagMetadata { return sdk.FlagMetadata{"version": n} }

// open returns a flag that is closed with the test.
func open(t testing.TB, cfg featureflag.Config) *featureflag.Flag {
	t.Helper()
	f, err := featureflag.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// await waits until ok accepts the flag's state.
func await(t testing.TB, f *featureflag.Flag, what string, ok func(featureflag.State) bool) featureflag.State {
	t.Helper()
	for deadline := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		s := f.State()
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s isn't seen within %v: %+v", what, soon, s)
		}
	}
}

func awaitPercent(t testing.TB, f *featureflag.Flag, percent float64) featureflag.State {
	t.Helper()
	return await(t, f, "the percentage", func(s featureflag.State) bool { return s.Percent == percent })
}

// fake is a client that answers what it is told to.
type fake struct {
	mu       sync.Mutex // guards what follows
	details  sdk.FloatEvaluationDetails
	err      error
	handlers map[sdk.EventCallback]sdk.EventType
	added    int
}

func (f *fake) FloatValueDetails(context.Context, string, float64, sdk.EvaluationContext, ...sdk.Option) (sdk.FloatEvaluationDetails, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.details, f.err
}

func (f *fake) AddHandler(event sdk.EventType, callback sdk.EventCallback) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handlers == nil {
		f.handlers = make(map[sdk.EventCallback]sdk.EventType)
	}
	f.added++
	f.handlers[callback] = event
}

func (f *fake) RemoveHandler(event sdk.EventType, callback sdk.EventCallback) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.added--
	delete(f.handlers, callback)
}
