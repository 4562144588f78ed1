package openfeature_test

import (
	"context"
	"errors"
	"testing"
	"time"

	sdk "github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/sluice-go/sluice/contrib/openfeature"
	"github.com/sluice-go/sluice/featureflag"
)

// With a refresh of an hour, only events can tell.
func TestChangesArePushed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	f := open(t, featureflag.Config{Name: "use-redis", Source: s.source(openfeature.Config{}), Refresh: never, Default: 70})
	await(t, f, "that there is no provider", func(s featureflag.State) bool { return s.Err != nil && s.Percent == 70 })
	s.set(answer{value: 10}).start() // it becomes ready
	awaitPercent(t, f, 10)
	for percent := range 20 {
		s.set(answer{value: float64(percent)})
		awaitPercent(t, f, float64(percent))
	}
	// Another provider takes its place.
	other := memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{
		"use-redis": {DefaultVariant: "all", Variants: map[string]any{"all": 100.0}},
	})
	if err := s.api.SetProviderAndWait(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	awaitPercent(t, f, 100)
}

func TestWatchRemovesItsHandlers(t *testing.T) {
	t.Parallel()
	client := new(fake)
	src := source(t, client, openfeature.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	calls := make(chan struct{}, 10)
	ended := make(chan error, 1)
	go func() { ended <- src.Watch(ctx, "use-redis", func() { calls <- struct{}{} }) }()

	called := func(what string) {
		t.Helper()
		select {
		case <-calls:
		case <-time.After(soon):
			t.Fatalf("changed isn't called %s", what)
		}
	}
	called("at the start")
	client.mu.Lock()
	var handlers []sdk.EventCallback
	for h := range client.handlers {
		handlers = append(handlers, h)
	}
	added := client.added
	client.mu.Unlock()
	if added != 2 || len(handlers) == 0 {
		t.Fatalf("%d handlers", added)
	}
	(*handlers[0])(sdk.EventDetails{})
	called("for an event")

	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(soon):
		t.Fatal("Watch doesn't end with its context")
	}
	client.mu.Lock()
	left := client.added
	client.mu.Unlock()
	if left != 0 {
		t.Errorf("%d handlers are left", left)
	}
	for range 10 { // the SDK may still run them: they must neither block nor call
		(*handlers[0])(sdk.EventDetails{})
	}
	select {
	case <-calls:
		t.Error("changed is called after the end")
	default:
	}
}
