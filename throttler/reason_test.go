package throttler_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend"
)

// docs/telemetry.md explains each word that Reason returns.
func TestReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, m := range regexp.MustCompile(`(?:return |, )"([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		words = append(words, m[1])
	}
	if len(words) < 12 {
		t.Errorf("%d words in reason.go: %q", len(words), words)
	}
	for k := backend.Unavailable; k.String() != backend.Kind(0).String(); k++ {
		words = append(words, k.String())
	}
	for _, word := range words {
		if !strings.Contains(string(docs), "\n| `"+word+"` | ") {
			t.Errorf("docs/telemetry.md doesn't explain %s", word)
		}
	}
}
