//go:build unix

package pagetest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "the `folder` to write screenshots to; a temporary one if empty")

// soon is the deadline for what the page shows: long even on a busy machine.
const soon = 30 * time.Second

// tab is a page in a browser, and what it complained about.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu         sync.Mutex // guards what follows
	complaints []string   // of the console and of the log
	requests   []string   // URLs
}

// open opens a URL in a browser of its own.
func open(t testing.TB, url string) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox) // it has none for root, nor in some containers
	ctx, closeAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	b := &tab{t: t}
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithListener(b.listen))
	b.ctx = ctx
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has gone
		closeTab()
		closeAllocator()
	})
	if err := chromedp.Do(ctx); err != nil { // starts it, without a deadline: that would be the browser's
		t.Fatal(err)
	}
	_, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
	if err == nil {
		_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	}
	if err == nil {
		_, err = chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
			Source: `var violations = [];
				addEventListener("securitypolicyviolation", (e) => violations.push(e.violatedDirective + " " + e.blockedURI));`,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.size(1200, 900)
	b.visit(url)
	return b
}

func (b *tab) visit(url string) {
	b.t.Helper()
	run(b, chromedp.Navigate(url))
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *cdplog.EventEntryAdded:
		b.complaints = append(b.complaints, e.Entry.Text)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, "console."+string(e.Type))
	case *page.EventJavascriptDialogOpening:
		b.complaints = append(b.complaints, "dialog: "+e.Message)
		go func() { _, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{}) }()
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*soon)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// eval returns what an expression is in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

// await waits until an expression is true in the page.
func (b *tab) await(expression string) {
	b.t.Helper()
	b.awaitFor(soon, expression)
}

func (b *tab) awaitFor(atMost time.Duration, expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(atMost); !eval[bool](b, expression); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within %v: %s; the page: %s", atMost, expression, eval[string](b, "document.body.innerText"))
		}
	}
}

// cells are the texts of a section's table, row by row.
func (b *tab) cells(section string) [][]string {
	b.t.Helper()
	return eval[[][]string](b, `[...document.querySelectorAll("#`+section+` tbody tr")].map((row) => [...row.cells].map((c) => c.textContent))`)
}

// facts are the names and values of a section's list.
func (b *tab) facts(section string) map[string]string {
	b.t.Helper()
	return eval[map[string]string](b, `Object.fromEntries([...document.querySelectorAll("#`+section+` dl div")].map(
		(fact) => [fact.querySelector("dt").textContent, fact.querySelector("dd").textContent]))`)
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, `document.querySelector("`+selector+`").innerText`)
}

// prefer makes the system's colours light or dark.
func (b *tab) prefer(scheme string) {
	b.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
}

// screenshot writes the whole page as a picture, and returns its size in pixels.
func (b *tab) screenshot(name string) (width, height int) {
	b.t.Helper()
	picture := run(b, chromedp.FullScreenshot(100))
	folder := *screenshots
	if folder == "" {
		folder = b.t.TempDir()
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
	shown, err := png.DecodeConfig(bytes.NewReader(picture))
	if err != nil {
		b.t.Fatal(err)
	}
	return shown.Width, shown.Height
}

// innocent checks that the page asked for nothing elsewhere, and complained about nothing.
func (b *tab) innocent(url string) {
	b.t.Helper()
	if got := eval[[]string](b, "violations"); len(got) > 0 {
		b.t.Errorf("violations of the policy: %q", got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.complaints) > 0 {
		b.t.Errorf("complaints: %q", b.complaints)
	}
	for _, request := range b.requests {
		if !strings.HasPrefix(request, url) {
			b.t.Errorf("a request to %s", request)
		}
	}
	if len(b.requests) < 5 { // the page, its assets, a poll
		b.t.Errorf("only %d requests", len(b.requests))
	}
}

// fits checks that the page is nowhere wider than a small window. Tables scroll by themselves.
func (b *tab) fits() {
	b.t.Helper()
	for _, size := range [][2]int64{{320, 568}, {640, 400}} { // a phone, a terminal of 80 x 25
		b.size(size[0], size[1])
		b.screenshot(fmt.Sprintf("page-%d", size[0]))
		if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(size[0]) {
			b.t.Errorf("%d pixels wide in a window of %d", wide, size[0])
		}
	}
}

func (b *tab) click(selector string) {
	b.t.Helper()
	run(b, chromedp.Evaluate[any]("document.querySelector(`"+selector+"`).click()"))
}

func (b *tab) size(width, height int64) {
	b.t.Helper()
	run(b, chromedp.EmulateViewport(width, height))
}

// luminance is the relative luminance of a colour, as WCAG defines it.
func luminance(b *tab, selector, property string) float64 {
	b.t.Helper()
	return eval[float64](b, `(() => {
		const [r, g, b] = getComputedStyle(document.querySelector("`+selector+`")).`+property+`.match(/[\d.]+/g)
			.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	})()`)
}
