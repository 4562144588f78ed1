package throttlertest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```")

// Each program in docs/testing.md is part of a test.
func TestDocsAreTested(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	flat := func(code string) string { return strings.Join(strings.Fields(code), " ") }
	var tests string
	for _, path := range []string{"example_test.go", "docs_test.go", "../../integration/miniredis_test.go"} {
		tests += flat(read(path)) + "\n"
	}
	blocks := goBlock.FindAllStringSubmatch(read("../../docs/testing.md"), -1)
	if len(blocks) < 6 {
		t.Errorf("%d programs", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(tests, flat(b[1])) {
			t.Errorf("no test has this program:\n%s", b[1])
		}
	}
}

func TestCodeThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits, err := throttler.New(throttler.Config{
			Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(1)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 3 {
			if _, err := limits.Wait(t.Context(), "user:42", 1); err != nil {
				t.Fatal(err)
			}
		}
		if waited := time.Since(start); waited < 2*time.Minute {
			t.Errorf("waited for %v", waited)
		}
	})
}
