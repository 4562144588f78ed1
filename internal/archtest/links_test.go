package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// TestMemoryLinksNoClient: a program with limits in memory links no third-party client, no OpenTelemetry and no YAML.
func TestMemoryLinksNoClient(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pkg   string
		clean bool
	}{{"throttler", true}, {"backend/memory", true}, {"throttler/httplimit", true}, {"throttler/throttlertest", true}, {"backend/redisbackend", false}} {
		out, err := exec.Command("go", "list", "-deps", module+"/"+test.pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		linked := 0
		for pkg := range strings.FieldsSeq(string(out)) {
			if matchAny([]string{goRedis, gomemcache, "go.opentelemetry.io/...", "go.yaml.in/..."}, pkg) {
				if linked++; test.clean {
					t.Errorf("%s links %s", test.pkg, pkg)
				}
			}
		}
		if !test.clean && linked == 0 {
			t.Errorf("%s links nothing that this test looks for", test.pkg)
		}
	}
}
