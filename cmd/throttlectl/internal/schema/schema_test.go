package schema_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/yamljson"
)

const repository = "../../../.."

// compiled returns the schema that throttlectl prints, valid by the meta-schema of its draft.
func compiled(t *testing.T, kind string) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(clitest.Succeed(t, "schema", kind)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if s.DraftVersion != 2020 {
		t.Errorf("draft %d", s.DraftVersion)
	}
	return s
}

// validate judges a document, which is YAML by the name of its file.
func validate(t *testing.T, s *jsonschema.Schema, name string, text []byte) error {
	t.Helper()
	if yamljson.IsYAML(name) {
		var err error
		if text, err = yamljson.Convert(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s.Validate(document)
}

// The schemas accept what the readers accept, and refuse what they refuse, as far as a schema can. The tests of package schemas
// hold the readers to the same documents.
func TestSchemasJudgeAsReaders(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"policies", "topology"} {
		s := compiled(t, kind)
		for class, valid := range map[string]bool{"valid": true, "invalid": false, "beyond": true} {
			paths, err := filepath.Glob(filepath.Join(repository, "schemas", "testdata", kind, class, "*"))
			if err != nil || len(paths) < 4 {
				t.Errorf("%d documents of %s, %s: %v", len(paths), class, kind, err)
			}
			for _, path := range paths {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := validate(t, s, path, text); (err == nil) != valid {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
}

var codeBlock = regexp.MustCompile("(?ms)^```(json|yaml)\n(.*?)^```")

// Every file of policies and every topology in the documentation is valid.
func TestDocsAreValid(t *testing.T) {
	t.Parallel()
	policies, topology := compiled(t, "policies"), compiled(t, "topology")
	found := map[string]int{}
	judge := func(path, name, text string) {
		switch {
		case strings.Contains(text, "groups"):
			if err := validate(t, topology, name, []byte(text)); err != nil {
				t.Errorf("%s: %v\n%s", path, err, text)
			}
			found["topology"]++
		case strings.Contains(text, "policies"):
			if err := validate(t, policies, name, []byte(text)); err != nil {
				t.Errorf("%s: %v\n%s", path, err, text)
			}
			found["policies"]++
		}
	}
	paths, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, filepath.Join(repository, "README.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range codeBlock.FindAllStringSubmatch(string(text), -1) {
			judge(path, "x."+block[1], block[2])
		}
	}
	for _, path := range []string{"examples/topology.json"} {
		text, err := os.ReadFile(filepath.Join(repository, path))
		if err != nil {
			t.Fatal(err)
		}
		judge(path, path, string(text))
	}
	judge("fixture.Tiers", "x.json", fixture.Tiers)
	three, err := json.Marshal(fixture.ThreeGroups)
	if err != nil {
		t.Fatal(err)
	}
	judge("fixture.ThreeGroups", "x.json", string(three))
	if found["policies"] < 2 || found["topology"] < 2 {
		t.Errorf("found %v", found)
	}
}

func TestSchemaCommand(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"policies", "topology"} {
		file, err := os.ReadFile(filepath.Join(repository, "schemas", kind+".schema.json"))
		if err != nil {
			t.Fatal(err)
		}
		if got := clitest.Succeed(t, "schema", kind); got != string(file) {
			t.Errorf("%s is not the file in the repository:\n%s", kind, got)
		}
		line := clitest.Succeed(t, "schema", kind, "--json")
		var compact bytes.Buffer
		if err := json.Compact(&compact, file); err != nil {
			t.Fatal(err)
		}
		if strings.Count(line, "\n") != 1 || !json.Valid([]byte(line)) || len(line) < compact.Len() {
			t.Errorf("%s --json: %s", kind, line)
		}
	}
	clitest.Fail(t, cli.ExitUsage, `unknown command "flags": want one of policies, topology`, "schema", "flags")
}
