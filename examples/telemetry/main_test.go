//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEverythingIsSeen plays the service in haste, and asks its Prometheus every query of the dashboard and of the alerts.
func TestEverythingIsSeen(t *testing.T) {
	o := defaults()
	o.step, o.drill, o.down, o.scrape, o.spans = time.Second, 2*time.Second, 2*time.Second, 500*time.Millisecond, 0.05
	reader := sdkmetric.NewManualReader()
	o.reader = reader
	started := make(chan addresses, 1)
	o.started = func(at addresses) { started <- at }
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out output
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o, &out) }()
	var at addresses
	select {
	case at = <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	if at.prometheus == "" {
		t.Fatal("no prometheus on PATH: `make test` installs it")
	}

	queries := panelQueries(t)
	maps.Copy(queries, alertQueries(t, at.prometheus))
	if len(queries) < 50 {
		t.Errorf("only %d queries: are these the dashboard and the alerts?", len(queries))
	}
	lines := map[string]bool{
		"WARN sluice.outage ": true, "WARN sluice.node.breaker_opened sluice.group=a ": true, "INFO sluice.node.breaker_closed ": true,
		"feature_flag.result.value=50 ": true, " span ": true, "db.system.name=redis": true, "sluice.side=new": true,
	}
	for deadline := time.Now().Add(60 * time.Second); len(queries)+len(lines) > 0 && time.Now().Before(deadline); {
		maps.DeleteFunc(queries, func(_, query string) bool {
			return len(asked[vector](t, at.prometheus, "query?query="+url.QueryEscape(query)).Result) > 0
		})
		maps.DeleteFunc(lines, func(line string, _ bool) bool { return strings.Contains(out.String(), line) })
		time.Sleep(100 * time.Millisecond)
	}
	for name, query := range queries {
		t.Errorf("%s: no data: %s", name, query)
	}
	for line := range lines {
		t.Errorf("nothing printed has %q", line)
	}
	// The printed link opens the alerts: as text, or by the script of a newer Prometheus.
	if page := get(t, at.alerts); !strings.Contains(out.String(), at.alerts) || !strings.Contains(page, "SluiceOutage") && !strings.Contains(page, `id="root"`) {
		t.Errorf("%s shows no alerts:\n%s", at.alerts, page)
	}
	for _, rule := range rules(t, at.prometheus) {
		if rule.Health != "ok" {
			t.Errorf("%s: %s, %s", rule.Name, rule.Health, rule.LastError)
		}
	}
	checkList(t, reader, get(t, at.metrics))

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// output takes what is printed, from anywhere.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// panelQueries are those of the dashboard, with its variables filled in as Grafana does.
func panelQueries(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../../dashboards/sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$policy", ".*", "$instance", ".*", "$__rate_interval", "10s", "$__range", "1m")
	queries := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			query := variables.Replace(target.Expr)
			if strings.Contains(query, "$") {
				t.Errorf("%s: an unknown variable in %s", p.Title, query)
			}
			queries["panel "+p.Title+" "+target.RefID] = query
		}
	}
	return queries
}

// comparison is one that drops what it doesn't hold for.
var comparison = regexp.MustCompile(`\s(>|<|>=|<=|==|!=)\s`)

// alertQueries are those of the alerts that the Prometheus has read, with comparisons that say no rather than nothing.
func alertQueries(t *testing.T, prometheus string) map[string]string {
	t.Helper()
	queries := map[string]string{}
	for _, rule := range rules(t, prometheus) {
		if !comparison.MatchString(rule.Query) {
			t.Errorf("alert %s compares nothing: %s", rule.Name, rule.Query)
		}
		queries["alert "+rule.Name] = comparison.ReplaceAllString(rule.Query, " $1 bool ")
	}
	if len(queries) < 10 {
		t.Errorf("alerts %q: are these all?", slices.Collect(maps.Keys(queries)))
	}
	return queries
}

type rule struct{ Name, Query, Health, LastError string }

// rules waits until each was evaluated.
func rules(t *testing.T, prometheus string) []rule {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var all []rule
		for _, group := range asked[struct{ Groups []struct{ Rules []rule } }](t, prometheus, "rules").Groups {
			all = append(all, group.Rules...)
		}
		if len(all) > 0 && !slices.ContainsFunc(all, func(r rule) bool { return r.Health == "unknown" }) {
			return all
		}
		if time.Now().After(deadline) {
			t.Fatalf("rules %+v: not evaluated", all)
		}
	}
}

type vector struct{ Result []json.RawMessage }

// asked asks the API of a Prometheus.
func asked[T any](t *testing.T, prometheus, path string) T {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          T
	}
	if err := json.Unmarshal([]byte(get(t, prometheus+"/api/v1/"+path)), &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %s %s, %v", path, answer.Status, answer.Error, err)
	}
	return answer.Data
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// metric is one as docs/telemetry.md lists it.
type metric struct {
	kind, unit       string
	labels, optional []string // sorted
}

// checkList compares docs/telemetry.md with what is exported: by the SDK, and for Prometheus to read.
func checkList(t *testing.T, reader *sdkmetric.ManualReader, scraped string) {
	t.Helper()
	data, err := os.ReadFile("../../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	prometheus, otel := map[string]metric{}, map[string]metric{}
	row := regexp.MustCompile("(?m)^\\| `(sluice_\\w+)` \\| `(sluice\\.[\\w.]+)` \\| (\\w+) \\| (\\S+) \\| ([^|]+) \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(string(data), -1) {
		listed := metric{kind: m[3], unit: m[4]}
		for _, label := range strings.Fields(m[5]) {
			if name, sometimes := strings.CutSuffix(label, "?"); sometimes {
				listed.optional = append(listed.optional, name)
			} else {
				listed.labels = append(listed.labels, label)
			}
		}
		prometheus[m[1]], otel[m[2]] = listed, listed
	}
	found := scrapedMetrics(scraped)
	for name, want := range prometheus {
		got, ok := found[name]
		if !ok {
			t.Errorf("%s is listed, and not exported", name)
			continue
		}
		for _, label := range want.labels {
			if !slices.Contains(got.labels, label) {
				t.Errorf("%s: no label %s on all series, only %q", name, label, got.labels)
			}
		}
		for _, label := range append(got.labels, got.optional...) {
			if !slices.Contains(want.labels, label) && !slices.Contains(want.optional, label) {
				t.Errorf("%s: the label %s is not listed", name, label)
			}
		}
		if got.kind != want.kind {
			t.Errorf("%s is a %s, listed as a %s", name, got.kind, want.kind)
		}
	}
	for name := range found {
		if _, ok := prometheus[name]; !ok {
			t.Errorf("%s is exported, and not listed", name)
		}
	}
	checkUnits(t, reader, otel)
}

// scrapedMetrics reads the text that Prometheus reads. Labels are those of all series, optional ones those of some.
func scrapedMetrics(text string) map[string]metric {
	found, kinds := map[string]metric{}, map[string]string{}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) == 4 && words[1] == "TYPE" {
			kinds[words[2]] = words[3]
			continue
		}
		name, rest, ok := strings.Cut(line, "{")
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); kinds[base] == "histogram" {
				name = base
			}
		}
		if !ok || !strings.HasPrefix(name, "sluice_") {
			continue
		}
		var labels []string
		for _, m := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(rest, -1) {
			if label := m[1]; label != "le" && !strings.HasPrefix(label, "otel_scope_") {
				labels = append(labels, label)
			}
		}
		m, seen := found[name]
		if !seen {
			m = metric{kind: kinds[name], labels: labels}
		}
		both := func(label string) bool { return slices.Contains(m.labels, label) && slices.Contains(labels, label) }
		for _, label := range append(slices.Clone(m.labels), labels...) {
			if !both(label) && !slices.Contains(m.optional, label) {
				m.optional = append(m.optional, label)
			}
		}
		m.labels = slices.DeleteFunc(slices.Clone(m.labels), func(label string) bool { return !both(label) })
		found[name] = m
	}
	return found
}

func checkUnits(t *testing.T, reader *sdkmetric.ManualReader, listed map[string]metric) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			found[m.Name] = true
			if want, ok := listed[m.Name]; !ok || m.Unit != want.unit || m.Description == "" {
				t.Errorf("%s: unit %q, described as %q; listed with unit %q", m.Name, m.Unit, m.Description, want.unit)
			}
		}
	}
	for name := range listed {
		if !found[name] {
			t.Errorf("%s is listed, and no instrument has the name", name)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{
		{"-rate", "0"}, {"-spans", "2"}, {"-spans", "NaN"}, {"extra"}, {"-topology", "/does/not/exist"}, {"-nonsense"},
	} {
		if err := command(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if err := command(t.Context(), []string{"-rules", "/does/not/exist"}, io.Discard); err == nil || !strings.Contains(fmt.Sprint(err), "-rules") {
		t.Errorf("rules that aren't there: %v", err)
	}
}
