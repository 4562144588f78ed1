package inspect_test

import (
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

func TestRing(t *testing.T) {
	t.Parallel()
	file := fixture.TopologyFile(t, fixture.ThreeGroups)
	fixture.Golden(t, "ring.txt", clitest.Succeed(t, "ring", "--topology", file))
	fixture.Golden(t, "ring.json", clitest.Succeed(t, "ring", "--topology", file, "--json"))
	fixture.Golden(t, "ring_sample.txt", clitest.Succeed(t, "ring", "--topology", file, "--sample", fixture.SampleFile(t, 1000)))
	fixture.Golden(t, "ring_sample.json", clitest.Succeed(t, "ring", "--topology", file, "--sample", fixture.SampleFile(t, 1000), "--json"))
	clitest.Fail(t, cli.ExitUsage, "--topology is needed", "ring")
	clitest.Fail(t, cli.ExitFailure, "has no keys", "ring", "--topology", file, "--sample", fixture.SampleFile(t, 0))
	clitest.Fail(t, cli.ExitFailure, "no such file", "ring", "--topology", file, "--sample", file+".not")
}
