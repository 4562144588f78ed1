package root_test

import (
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

// What a shell asks for with the tab key.
func TestCompletion(t *testing.T) {
	t.Parallel()
	file := fixture.TopologyFile(t, fixture.ThreeGroups)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"doctor", "--topology", file, "--group", ""}, "eu-1\neu-2\neu-3\n:4\n"},
		{[]string{"doctor", "--topology", file + ".not", "--group", ""}, ":4\n"},
		{[]string{"doctor", "--fail-on", ""}, "info\nwarning\ncritical\n:4\n"},
		{[]string{"doctor", "--ignore", ""}, "sentinel\ncluster\n:4\n"},
		{[]string{"peek", "--topology", ""}, "json\nyaml\nyml\n:8\n"}, // files that end so
		{[]string{"peek", "--policies", ""}, "json\nyaml\nyml\n:8\n"},
		{[]string{"policies", "check", ""}, "json\nyaml\nyml\n:8\n"},
		{[]string{"top", "--sort", ""}, "decisions\ndenied\nshare\nerrors\nexposure\nfallback\nname\n:4\n"},
		{[]string{"peek", ""}, ":4\n"},
		{[]string{"topology", "push", ""}, "json\nyaml\nyml\n:8\n"},
		{[]string{"topology", "push", "a.json", ""}, ":4\n"},
		{[]string{"reshard", "plan", "a.json", ""}, "json\nyaml\nyml\n:8\n"},
		{[]string{"reshard", "plan", "a.json", "b.json", ""}, ":4\n"},
	} {
		got := clitest.Execute(t, append([]string{"__complete"}, test.args...)...)
		if got.Code != cli.ExitOK || !strings.HasSuffix(got.Stdout, test.want) || test.want == ":4\n" && got.Stdout != test.want {
			t.Errorf("%q: %+v", test.args, got)
		}
	}
}
