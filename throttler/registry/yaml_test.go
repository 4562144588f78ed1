package registry_test

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler/registry"
)

const yamlTiers = `# Tiers of the API.
version: 2026-11-21 # as it is written
policies:
  free: [10/1s, 240/1h]
  pro:
    - 100/1s
default: free
keys:
  tenant:7:*: pro
  042: pro
deny:
  - tenant:13
`

// A file of policies may be YAML. The digest is that of the file.
func TestOpenYAML(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	write(t, path, yamlTiers)
	synctest.Test(t, func(t *testing.T) {
		r, err := registry.Open(path, registry.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		sum := sha256.Sum256([]byte(yamlTiers))
		if now := r.Info(); now.Version != "2026-11-21" || now.Digest != hex.EncodeToString(sum[:]) {
			t.Errorf("%+v", now)
		}
		if got, want := r.Policy("free").Limits, []limit.Limit{limit.PerSecond(10), limit.PerHour(240)}; !slices.Equal(got, want) {
			t.Errorf("free is %v, want %v", got, want)
		}
		for key, want := range map[string]string{"tenant:7:x": "pro", "042": "pro", "42": "free", "34": "free"} {
			if got := policyOf(r, key).Name; got != want {
				t.Errorf("%s has %s, want %s", key, got, want)
			}
		}
		write(t, path, strings.Replace(yamlTiers, "100/1s", "200/1s", 1))
		time.Sleep(3 * time.Second)
		if got := r.Policy("pro").Limits[0].Max; got != 200 {
			t.Errorf("pro has %d after the change", got)
		}
		write(t, path, yamlTiers[:len(yamlTiers)-20]+"\n- *x")
		time.Sleep(3 * time.Second)
		if now := r.Info(); !strings.Contains(now.Refused, "line ") || r.Policy("pro").Limits[0].Max != 200 {
			t.Errorf("a broken file: %+v", now)
		}
	})
}

// YAML is checked as strictly as JSON, with lines, and no key is told.
func TestRefusesYAML(t *testing.T) {
	t.Parallel()
	const key = "secret@example.com"
	for _, test := range []struct {
		name, document string
		want           []string
	}{
		{"nothing", "", []string{"line 1: document"}},
		{"a list", "- a\n", []string{"line 1: document", "line 1: default"}},
		{"two documents", yamlTiers + "---\n" + yamlTiers, []string{"line 1: document"}},
		{"an alias", yamlTiers + "allow: [*" + "secret]\n", []string{"line 13: document"}},
		{"a merge", yamlTiers + "shadow:\n  <<: {free: pro}\n", []string{"line 14: document"}},
		{"a tag", yamlTiers + "allow: [!x " + key + "]\n", []string{"line 13: document"}},
		{"a broken list", yamlTiers + "allow: [" + key + "\n", []string{"line 14: document"}},
		{"null", yamlTiers + "allow:\nshadow: ~\n", []string{"line 13: allow", "line 14: shadow"}},
		{"a key twice", yamlTiers + "shadow:\n  free: pro\n  free: pro\n", []string{"line 15: shadow"}},
		{"all at once", "policies:\n  free: [10/1s,\n    nonsense]\n  Pro: [1/1s]\n  " + key + ": [1/1s]\n  n: [7]\ndefault: 7\n" +
			key + ": free\nkeys:\n  " + key + ": gold\n  ? ''\n  : free\nallow: " + key + "\ndefault: free\n", []string{
			`line 2: policy "free": limit 2: text`, "line 4: policy name", "line 5: policy name", "line 6: policies: entry 1",
			"line 7: default", "line 8: member", "line 12: keys", "line 13: allow", "line 14: document", "line 10: keys",
		}},
	} {
		path := filepath.Join(t.TempDir(), "policies.yml")
		write(t, path, test.document)
		_, err := registry.Open(path, registry.Config{Refresh: -1})
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		if got := fields(err); !slices.Equal(got, test.want) {
			t.Errorf("%s: fields %q\nwant %q\n%v", test.name, got, test.want, err)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: tells a key: %v", test.name, err)
		}
	}
}

// A document may name its schema, for editors.
func TestSchemaMember(t *testing.T) {
	t.Parallel()
	newRegistry(t, tiers(`, "$schema": "policies.schema.json"`))
	if _, err := registry.New([]byte(tiers(`, "$schema": 1`)), registry.Config{}); !slices.Equal(fields(err), []string{"line 1: $schema"}) {
		t.Errorf("a number: %v", err)
	}
}
