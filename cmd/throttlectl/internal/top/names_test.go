package top_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Keys that the operator's file has are shown by their names, hashed ones with the applications' HashKey.
func TestTopNames(t *testing.T) {
	t.Parallel()
	names := writeFile(t, "names.yaml", "# tenants\nalice: Alice & Co\ncarol: Carol\n")
	hashKey := writeFile(t, "hash-key", "a secret of all processes\n")
	for name, test := range map[string]struct {
		clear bool
		args  []string
		named bool
	}{
		"in clear":                   {true, nil, true},
		"in clear, with a hash key":  {true, []string{"--hash-key-file", hashKey}, true},
		"hashed":                     {false, []string{"--hash-key-file", hashKey}, true},
		"hashed, without a hash key": {false, nil, false},
	} {
		app := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{ClearKeys: test.clear}, func(its *throttler.Throttler) {
			fixture.Ask(t, its, "alice", 9)
			fixture.Ask(t, its, "bob", 7)
		})
		args := append([]string{"top", "--once", "--interval", "100ms", "--url", app.URL, "--names", names}, test.args...)
		text := clitest.Succeed(t, args...)
		if strings.Contains(strings.Join(strings.Fields(text), " "), "Alice & Co 4 0") != test.named || strings.Contains(text, "Carol") || !strings.Contains(text, "DENIED MOST") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestTopNamesFailures(t *testing.T) {
	t.Parallel()
	url := "http://127.0.0.1:1/debug/sluice"
	good, short := writeFile(t, "names.json", `{"alice": "Alice"}`), writeFile(t, "hash-key", "short")
	for _, test := range []struct {
		code int
		want string
		args []string
	}{
		{cli.ExitFailure, "no such file", []string{"--names", good + ".not"}},
		{cli.ExitFailure, "no such file", []string{"--names", good, "--hash-key-file", short + ".not"}},
		{cli.ExitFailure, "must have at least 16", []string{"--names", good, "--hash-key-file", short}},
		{cli.ExitUsage, "--hash-key-file is for --names", []string{"--hash-key-file", short}},
		{cli.ExitFailure, "line 2: the key is given twice", []string{"--names", writeFile(t, "n.yaml", "secret: a\nsecret: b\n")}},
		{cli.ExitFailure, "line 1: the name of a key must be a text", []string{"--names", writeFile(t, "n.json", `{"secret": 1}`)}},
		{cli.ExitFailure, "must be an object of keys", []string{"--names", writeFile(t, "n.json", `["secret"]`)}},
		{cli.ExitFailure, "line 1: anchors and aliases", []string{"--names", writeFile(t, "n.yml", "a: *secret\n")}},
	} {
		args := append([]string{"top", "--once", "--url", url}, test.args...)
		clitest.Fail(t, test.code, test.want, args...)
		if got := clitest.Execute(t, args...); strings.Contains(got.Stderr, "secret") {
			t.Errorf("tells a key: %s", got.Stderr)
		}
	}
}
