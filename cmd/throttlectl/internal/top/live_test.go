package top

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// On a terminal the page follows what is decided, from the first look on, and goes when it is interrupted.
func TestTopLive(t *testing.T) {
	t.Parallel()
	app := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{}, func(its *throttler.Throttler) {
		fixture.Ask(t, its, "alice", 9)
	})
	o := &options{Factory: &cli.Factory{Timeout: fixture.Soon}, urls: []string{app.URL}, interval: minInterval, sort: "name", keys: 1}
	all, err := o.processes()
	if err != nil {
		t.Fatal(err)
	}
	f := new(fixture.FakeTerminal)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan error, 1)
	keys := make(chan byte)
	go func() {
		ended <- o.live(ctx, &terminal.Screen{W: f, Rows: func() int { return fixture.FakeRows }}, all, keys)
	}()
	// A page with denials, and after the next interval, which has none, a calm one.
	denials := func(page string) bool {
		return strings.Contains(page, app.KeyHash("alice")) && strings.Contains(page, "44.44%")
	}
	calm := func(page string) bool {
		return strings.Contains(page, "api     0.0        0.0 ") && strings.Contains(page, "█▁") && !strings.Contains(page, "44.44%")
	}
	seen := 0 // pages
	await := func(want func(page string) bool) {
		t.Helper()
		for deadline := time.Now().Add(fixture.Soon); ; time.Sleep(time.Millisecond) {
			_, pages := f.Shown()
			if i := slices.IndexFunc(pages[seen:], want); i >= 0 {
				seen += i
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("not within %v: %q", fixture.Soon, pages[seen:])
			}
		}
	}
	footer := func(want string) func(page string) bool {
		return func(page string) bool { return strings.HasSuffix(page, "\n"+want) }
	}
	await(denials)
	await(calm)
	await(footer("q quit  s S sort: name"))
	keys <- 's'
	await(footer("q quit  s S sort: decisions"))
	keys <- 'S'
	keys <- 'x'
	await(footer("q quit  s S sort: name"))
	interrupt()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if page, _ := f.Shown(); page != "" || f.Second || f.Hidden || f.Cut || len(f.Unknown) > 0 {
		t.Errorf("left behind: %q, %+v", page, f)
	}
}
