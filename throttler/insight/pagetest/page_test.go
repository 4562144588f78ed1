//go:build unix

package pagetest

import (
	"flag"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

var lasts = flag.Duration("traffic", 6*time.Second, "how much traffic the screenshots show")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// thousands is a number as the page shows it.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// What the page shows is what the Recorder, the lease, the groups and the migration count, and keys are text.
func TestPage(t *testing.T) {
	app := newApplication(t)
	address, _ := serve(t, "", app.handler)
	b := open(t, address+"?top=8")
	b.await(`document.querySelector("#state").textContent === "live"`)
	stop := app.traffic(t)
	b.awaitFor(*lasts+soon, fmt.Sprintf(`charts.outcome.history.samples.length > 1 &&
		charts.outcome.history.samples.at(-1).at - charts.outcome.history.samples[0].at >= %d`, lasts.Milliseconds()))
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		if w, h := b.screenshot("page-" + scheme); w != 1200 || h < 900 {
			t.Errorf("screenshot of %d x %d pixels", w, h)
		}
	}
	if rate := b.text("#now-allowed"); rate == "0" || rate == "–" {
		t.Errorf("allowed a second: %q", rate)
	}
	const allowed = `document.querySelector("#chart-outcome li b").textContent` // in the legend
	under := eval[string](b, `{
		const svg = document.querySelector("#chart-outcome svg"), box = svg.getBoundingClientRect();
		const first = charts.outcome.history.samples[0], end = charts.outcome.history.samples.at(-1).at;
		first.values.allowed = 123456; // which is drawn at the first sample
		svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right - box.width * (end - first.at) / charts.outcome.history.span() }));
		`+allowed+`
	}`)
	if under != "123,456" {
		t.Errorf("under the pointer %q were allowed", under)
	}
	b.await(`document.querySelector("#chart-outcome svg").dispatchEvent(new PointerEvent("pointerleave")) && ` + allowed + ` !== "123,456"`)
	if areas := eval[int](b, `document.querySelectorAll("#chart-outcome path, #chart-source path").length`); areas < 4 {
		t.Errorf("%d areas in the charts", areas)
	}
	stop()
	b.visit(address + "?top=1000")
	for _, key := range hostile {
		app.ask(t, key, 30) // 20 a minute
	}
	stats := app.recorder.Stats()
	total := stats.Policies[0].Denied
	b.await(fmt.Sprintf(`[...document.querySelectorAll("#policies tbody tr")].some((row) => row.cells[8].textContent === %q)`, thousands(total)))

	rows := b.cells("policies")
	for i, p := range stats.Policies {
		want := []string{thousands(p.Allowed), thousands(p.Denied), thousands(p.Errors), thousands(p.Exposure)}
		if rows[i][0] != p.Policy || rows[i][1] != limits(p.Limits) || strings.Join(rows[i][7:], " ") != strings.Join(want, " ") {
			t.Errorf("row %q, want %q", rows[i], want)
		}
	}
	shown := map[string]string{}
	for _, row := range b.cells("denied") {
		shown[row[0]] = row[1]
	}
	for key, text := range map[string]string{
		hostile[0]: hostile[0], hostile[1]: hostile[1], hostile[2]: hostile[2], hostile[3]: `user:\u{202e}gnp.exe`, hostile[4]: `\u{1b}[31mred\u{0}`,
	} {
		if n, err := strconv.Atoi(shown[text]); err != nil || n < 9 || n > 11 {
			t.Errorf("key %q is shown with %q denials, want about 10: %v", key, shown[text], shown)
		}
	}
	near := b.cells("near")
	if len(near) < len(hostile) || !strings.Contains(fmt.Sprint(near), hostile[0]) || near[0][1] != "free" {
		t.Errorf("near: %q", near)
	}
	var nodes []string
	for _, row := range b.cells("nodes") {
		nodes = append(nodes, row[0]+" "+row[2]+" "+row[3])
	}
	if got := strings.Join(nodes, ", "); got != "eu-1 primary ok, eu-1 replica ok, eu-2 primary ok" {
		t.Errorf("nodes: %s", got)
	}
	if leases := b.facts("lease"); leases["admitted from a lease"] == "0" || leases["without a call"] == "–" {
		t.Errorf("leases: %q", leases)
	}
	if text := b.text("#flag"); text != "limits-in-redis: 80 % (split), version 16384" {
		t.Errorf("flag: %q", text)
	}
	if m := b.facts("migration"); m["decided by the old side"] == "0" || m["decided by the new side"] == "0" {
		t.Errorf("migration: %q", m)
	}
	for by, first := range map[string]string{"policy": "free", "denied": "free", "allowed": "pro"} {
		b.click(`[data-sort="errors"]`)
		b.click(`[data-sort="` + by + `"]`)
		if rows := b.cells("policies"); rows[0][0] != first {
			t.Errorf("by %s: %q", by, rows)
		}
		b.click(`[data-sort="` + by + `"]`)
		if rows := b.cells("policies"); rows[0][0] == first {
			t.Errorf("by %s, the other way: %q", by, rows)
		}
	}
	b.fits()
	b.innocent(address)

	// The browser does enforce the policy, and the test would see it.
	for name, attack := range map[string]string{
		"img-src":                   `document.body.append(Object.assign(new Image(), { src: "http://127.0.0.1:1/x.png" }))`,
		"style-src-attr":            `document.body.setAttribute("style", "color: red")`,
		"require-trusted-types-for": `{ const s = document.createElement("script"); s.append("alert(4)"); document.body.append(s) }`,
		"connect-src":               `fetch("http://127.0.0.1:1/").catch(() => {})`,
	} {
		eval[any](b, "{"+attack+"; true}")
		b.await(`violations.some((v) => v.startsWith("` + name + ` "))`)
	}
}

func limits(all []limit.Limit) string {
	var texts []string
	for _, l := range all {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, " ")
}

// A server that is down is loud, and so is the failure policy that decides meanwhile.
func TestPageShowsAnOutage(t *testing.T) {
	app := newApplication(t)
	address, _ := serve(t, "", app.handler)
	b := open(t, address)
	b.await(`document.querySelector("#state").textContent === "live"`)
	if text := b.text("#notices"); text != "" {
		t.Errorf("notices: %q", text)
	}
	app.primary.Kill()
	app.traffic(t)
	for _, text := range []string{"The primary of group eu-1, ", " of the decisions under policy free are made without the backend."} {
		b.await(`document.querySelector("#notices").innerText.includes("` + text + `")`)
	}
	b.await(`document.querySelector("#nodes tbody tr").cells[3].textContent.startsWith("breaker ")`)
	b.innocent(address)
}

// Data that is old is shown as old; a process that is new, as new.
func TestPageIsStale(t *testing.T) {
	serveNew := func(address string) (string, func()) {
		recorder, err := insight.New(insight.Config{})
		if err != nil {
			t.Fatal(err)
		}
		th, err := throttler.New(throttler.Config{Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerHour(5)}}, Observer: recorder})
		if err != nil {
			t.Fatal(err)
		}
		defer th.Close()
		if _, err := th.Allow(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		return serve(t, address, insight.Handler(recorder, insight.HandlerConfig{}))
	}
	address, stop := serveNew("")
	b := open(t, address)
	b.await(`document.querySelector("#state").textContent === "live"`)
	for _, section := range []string{"denied", "near", "nodes", "lease", "migration", "shadow"} {
		if !eval[bool](b, `document.querySelector("#`+section+`").hidden`) {
			t.Errorf("%s is shown, of which nothing is known", section)
		}
	}
	b.fits()
	b.innocent(address)
	stop()
	b.await(`document.body.classList.contains("stale") && /^stale for [1-9]/.test(document.querySelector("#state").textContent)`)
	if text := b.text("#notices"); !strings.HasPrefix(text, "No answer since ") {
		t.Errorf("notices: %q", text)
	}
	if got := b.cells("policies")[0][7]; got != "1" {
		t.Errorf("%q allowed: the latest known numbers stay", got)
	}
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	serveNew(at.Host)
	b.await(`document.querySelector("#state").textContent === "live" && !document.body.classList.contains("stale")`)
	if text := b.text("#notices"); !strings.HasPrefix(text, "The process restarted at ") {
		t.Errorf("notices: %q", text)
	}
}

// The colours follow the system, and stay readable.
func TestPageColours(t *testing.T) {
	recorder, err := insight.New(insight.Config{})
	if err != nil {
		t.Fatal(err)
	}
	address, _ := serve(t, "", insight.Handler(recorder, insight.HandlerConfig{}))
	b := open(t, address)
	b.await(`document.querySelector("#state").textContent === "live"`)
	for scheme, dark := range map[string]bool{"light": false, "dark": true} {
		b.prefer(scheme)
		for _, selector := range []string{"h1", "h1 span", "th", "#state", ".note"} {
			back, text := luminance(b, "body", "backgroundColor"), luminance(b, selector, "color")
			if (back < text) != dark {
				t.Errorf("%s: %s has luminance %.2f on %.2f", scheme, selector, text, back)
			}
			if contrast := (max(back, text) + 0.05) / (min(back, text) + 0.05); contrast < 4.5 { // WCAG 2.2, AA
				t.Errorf("%s: %s has a contrast of %.1f", scheme, selector, contrast)
			}
		}
	}
}
