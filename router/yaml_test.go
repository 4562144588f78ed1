package router_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/router"
)

const yamlTopology = `$schema: topology.schema.json
epoch: 3
baseline: true
seed: 18446744073709551615
groups:
  - name: eu-1
    primary: 10.0.0.1:6379
    replicas: [10.0.0.2:6379, "[2001:db8::1]:6379"]
  - {name: eu-2, weight: 2, primary: "redis-2.example.com:6379"}
  - {name: eu-3, sentinels: ["10.0.0.9:26379"], master: main}
  - {name: eu-4, sentinels: [10.0.0.9:26379], master: other}
  - name: eu-5 # a cluster
    cluster:
      - 10.0.2.1:6379
      - 10.0.2.2:6379
`

func topologyFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestYAMLTopology(t *testing.T) {
	got, err := router.LoadTopology(topologyFile(t, "groups.yaml", yamlTopology))
	if err != nil {
		t.Fatal(err)
	}
	want, err := router.ParseTopology([]byte(goodTopology))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v, %v", got, want, err)
	}
}

func TestWatchYAML(t *testing.T) {
	path := topologyFile(t, "groups.yml", "epoch: 1\ngroups: [{name: a, primary: 'h:1'}]\n")
	topology, err := router.LoadTopology(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := router.Open(topology, router.Config{Node: func(string) (backend.Backend, error) { return memory.New(memory.Config{}) }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := "epoch: 2\ngroups: [{name: a, primary: 'h:1'}, {name: b, primary: 'h:2'}]\nprevious:\n  epoch: 1\n  groups: [{name: a, primary: 'h:1'}]\n"
	if err := os.WriteFile(path, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.WatchFile(path); err != nil || len(r.Nodes()) != 2 {
		t.Errorf("%d nodes, %v", len(r.Nodes()), err)
	}
}

// A file that is no topology is refused with the line, in YAML as in JSON.
func TestTopologyLines(t *testing.T) {
	for name, test := range map[string]struct{ file, text, want string }{
		"unknown member":       {"t.yaml", "epoch: 1\ngroups:\n  - name: a\n    primry: h:1\n", `line 4: unknown member "primry": want epoch`},
		"unknown member, JSON": {"t.json", "{\"epoch\": 1,\n\"groups\": [\n{\"name\": \"a\",\n\"primry\": \"h:1\"}]}", `line 4: unknown member "primry"`},
		"member twice":         {"t.yaml", "epoch: 1\ngroups: [{name: a, primary: 'h:1'}]\nepoch: 2\n", `line 3: member "epoch" is given twice`},
		"schema twice":         {"t.yaml", "$schema: a\n$schema: b\ngroups: [{name: a, primary: 'h:1'}]\n", `line 2: unknown member "$schema"`},
		"schema within":        {"t.json", "{\"groups\": [{\"name\": \"a\", \"primary\": \"h:1\",\n\"$schema\": \"x\"}]}", `line 2: unknown member "$schema"`},
		"schema is no text":    {"t.json", "{\"$schema\": 1, \"groups\": [{\"name\": \"a\", \"primary\": \"h:1\"}]}", "line 1: json: cannot unmarshal number"},
		"wrong type":           {"t.yaml", "epoch: 1\ngroups:\n  - name: a\n    weight: two\n    primary: h:1\n", "line 4: json: cannot unmarshal string"},
		"not a number of JSON": {"t.yaml", "epoch: 0x10\ngroups: []\n", "must be one YAML object: line 1: a number must be"},
		"syntax, JSON":         {"t.json", "{\"epoch\": 1,\n\"groups\": [}", "line 2: invalid character"},
		"syntax, YAML":         {"t.yaml", "epoch: 1\ngroups: [\n", "must be one YAML object: line 3: "},
		"invalid":              {"t.yaml", "groups: [{name: a, primary: h}]\n", `groups[0].primary = "h"`},
	} {
		_, err := router.LoadTopology(topologyFile(t, test.file, test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if fields := refusedFields(err); name != "invalid" && !slices.Equal(fields, []string{"topology"}) {
			t.Errorf("%s: fields %q", name, fields)
		}
	}
}
