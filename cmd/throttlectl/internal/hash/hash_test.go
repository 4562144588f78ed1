package hash_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/hash"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

const (
	value  = "sk_4e1ab07d9f2c4c55a3e8d1706b5f2c90"
	secret = "a secret of all processes"
)

// counted is the key as which a request with a value is counted.
func counted(t *testing.T, header, value string, secret []byte) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(header, value)
	key, err := httplimit.Header(header, secret)(r)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestHash(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := counted(t, "X-Api-Key", value, nil)
	for want, args := range map[string][]string{
		plain: {value},
		counted(t, "X-Api-Key", value, []byte(secret)):             {value, "--secret-file", file},
		counted(t, "Authorization", "Bearer x", []byte(secret)):    {"Bearer x", "--secret-file", file, "--header", "authorization"},
		"{\"key\":\"" + counted(t, "X-Tenant", value, nil) + "\"}": {value, "--header", "x-tenant", "--json"},
	} {
		got := clitest.Succeed(t, append([]string{"hash"}, args...)...)
		if got != want+"\n" {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
		if strings.Contains(got, value) {
			t.Errorf("tells the value: %s", got)
		}
	}
	t.Setenv(hash.SecretEnv, secret)
	if got, want := clitest.Succeed(t, "hash", value), counted(t, "X-Api-Key", value, []byte(secret)); got != want+"\n" {
		t.Errorf("by the environment: %q, want %q", got, want)
	}
}

func TestHashOfStdin(t *testing.T) {
	t.Parallel()
	run := func(stdin string) (string, string, int) {
		var stdout, stderr bytes.Buffer
		code := root.Run(t.Context(), cli.Streams{In: strings.NewReader(stdin), Out: &stdout, ErrOut: &stderr}, []string{"hash", "-"})
		return stdout.String(), stderr.String(), code
	}
	one, two := counted(t, "X-Api-Key", value, nil), counted(t, "X-Api-Key", "two words", nil)
	if got, _, code := run(value + "\r\n\ntwo words"); code != cli.ExitOK || got != one+"\n"+two+"\n" {
		t.Errorf("%d %q", code, got)
	}
	if got, stderr, code := run("\n"); code != cli.ExitFailure || got != "" || !strings.Contains(stderr, "no value") {
		t.Errorf("%d %q %q", code, got, stderr)
	}
}

func TestHashFailures(t *testing.T) {
	t.Parallel()
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("fifteen bytes..\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Fail(t, cli.ExitUsage, "0 arguments: want KEY|-", "hash")
	clitest.Fail(t, cli.ExitUsage, "a secret of 15 bytes: must have at least 16", "hash", value, "--secret-file", short)
	clitest.Fail(t, cli.ExitFailure, "no such file", "hash", value, "--secret-file", short+".not")
	clitest.Fail(t, cli.ExitUsage, `--header = "x-api-key: ": must be the name`, "hash", value, "--header", "x-api-key: ")
	clitest.Fail(t, cli.ExitFailure, "no value", "hash", "")
}

// examples/tiers has the hash that the command in its comment prints.
func TestHashOfTheExample(t *testing.T) {
	t.Parallel()
	want := clitest.Succeed(t, "hash", value)
	for _, name := range []string{"policies.yaml", "names.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../../examples/tiers", name))
		if err != nil || !strings.Contains(string(text), strings.TrimSpace(want)+": ") {
			t.Errorf("%s hasn't %s%s, %v", name, want, text, err)
		}
		if name == "policies.yaml" && !strings.Contains(string(text), value) {
			t.Errorf("%s doesn't say whose hash it is: %s", name, text)
		}
	}
}
