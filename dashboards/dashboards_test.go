// Package dashboards holds the tests of the dashboard and the alerts beside it. Those on a real scrape of a real service are
// in examples/telemetry.
package dashboards

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// all are the first groups of a pattern's matches.
func all(pattern, text string) []string {
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

func TestAlertsOfPromtool(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		out, err := exec.Command("promtool", args...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %q: %v (`make test` installs it)\n%s", args, err, out)
		}
	}
}

// TestAlertsHaveTestsAndRunbook: each alert is seen to fire and to keep quiet, and has a section of the runbook, which has no
// others.
func TestAlertsHaveTestsAndRunbook(t *testing.T) {
	t.Parallel()
	rules, tests := read(t, "alerts.yml"), read(t, "alerts_test.yml")
	alerts := all(`(?m)^ *- alert: (\w+)$`, rules)
	if len(alerts) < 10 {
		t.Fatalf("alerts %q: is this the file?", alerts)
	}
	var anchors []string
	for _, alert := range alerts {
		anchors = append(anchors, strings.ToLower(alert))
		for _, does := range []string{"fires", "quiet"} {
			if !strings.Contains(tests, `- name: "`+alert+": "+does+" on ") {
				t.Errorf("%s: no test in which it %s", alert, does)
			}
		}
	}
	if got := all(`(?m)^ *runbook: docs/runbook\.md#([a-z]+)$`, rules); !slices.Equal(got, anchors) {
		t.Errorf("runbooks %q, want one for each of %q", got, alerts)
	}
	runbook := read(t, "..", "docs", "runbook.md")
	if got := all(`(?m)^## (\w+)$`, runbook); !slices.Equal(got, alerts) {
		t.Errorf("sections of the runbook %q, want %q", got, alerts)
	}
	for _, link := range all(`\]\(#(\w+)\)`, runbook) {
		if !slices.Contains(anchors, link) {
			t.Errorf("the runbook links to %q, which is no section", link)
		}
	}
	for _, alert := range alerts {
		section := runbook[strings.Index(runbook, "## "+alert+"\n"):]
		for _, part := range []string{"**Means**", "**Look**", "**Do**"} {
			if end := strings.Index(section[3:], "\n## "); end > 0 {
				section = section[:end+3]
			}
			if strings.Count(section, part) != 1 {
				t.Errorf("%s: the runbook has no %s", alert, part)
			}
		}
	}
}

// dashboard is what Grafana must find.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query any }
	}
	Panels []panel
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource *source
	GridPos    struct{ H, W, X, Y int }
	Targets    []struct {
		RefID      string
		Expr       string
		Datasource source
	}
}

type source struct{ Type, UID string }

func TestDashboard(t *testing.T) {
	t.Parallel()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "sluice.json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 41 { // 41 is that of Grafana 12
		t.Errorf("uid %q, title %q, schema version %d", d.UID, d.Title, d.SchemaVersion)
	}
	if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" || v[0].Query != "prometheus" {
		t.Errorf("variables %v, want the data source first", v)
	}
	ids, titles, cells := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	var rows []string
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d %q: its id or its title is another's", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q, or beyond the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		want := source{Type: "prometheus", UID: "${datasource}"}
		if p.Datasource == nil || *p.Datasource != want || len(p.Targets) == 0 {
			t.Errorf("panel %q: data source %v, %d queries", p.Title, p.Datasource, len(p.Targets))
		}
		for _, q := range p.Targets {
			if q.Datasource != want || q.Expr == "" {
				t.Errorf("panel %q: query %+v", p.Title, q)
			}
		}
	}
	runbook := strings.Join(strings.Fields(read(t, "..", "docs", "runbook.md")), " ")
	for _, named := range all(`[^*]\*([A-Z][^*]+)\*[^*]`, runbook) {
		if !titles[named] {
			t.Errorf("the runbook names the panel %q, and there is none", named)
		}
	}
	want := []string{"Traffic", "Denials", "Latency", "Health of nodes", "Leases", "Migration", "Exposure"}
	if !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

// TestMetricsAreListed: what is drawn and alerted on is in the list of metrics, and all of that is drawn.
func TestMetricsAreListed(t *testing.T) {
	t.Parallel()
	listed := all("(?m)^\\| `(sluice_[a-z_]+)` \\|", read(t, "..", "docs", "telemetry.md"))
	if len(listed) < 20 {
		t.Fatalf("listed %q: is this the table?", listed)
	}
	labels := strings.Fields("sluice_policy sluice_outcome sluice_source sluice_guarantee sluice_cause sluice_failure_policy sluice_backend " +
		"sluice_operation sluice_shadow_policy sluice_lease sluice_side sluice_shadow sluice_group sluice_node sluice_role sluice_breaker")
	drawn, used := read(t, "sluice.json"), map[string]bool{}
	for _, name := range all(`\b(sluice_[a-z_]+)`, drawn+read(t, "alerts.yml")) {
		name = strings.TrimSuffix(name, "_bucket")
		used[name] = true
		if !slices.Contains(listed, name) && !slices.Contains(labels, name) {
			t.Errorf("%s is used and not listed in docs/telemetry.md", name)
		}
	}
	for _, name := range listed {
		if !strings.Contains(drawn, name) {
			t.Errorf("%s is in no panel", name)
		}
	}
}
