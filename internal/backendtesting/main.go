// Package backendtesting has what the tests of the implementations of backends share.
package backendtesting

import (
	"context"
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	_ "pgregory.net/rapid" // for its flags

	"github.com/sluice-go/sluice/internal/testtier"
)

// Main runs the tests of a package. It makes the random histories the same in every run (-rapid.seed and -rapid.checks ask for
// others), and looks for goroutines that outlive their backend. It returns the exit code.
func Main(m *testing.M) int {
	_ = flag.Set("test.parallel", "5") // most tests wait for servers; the command line may say otherwise
	checks := strconv.Itoa(testtier.Size(25, 100))
	if err := testtier.SetFlags("rapid.seed", "20260101", "rapid.checks", checks, "rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	redis.SetLogger(silence{}) // many tests have servers that can't be reached
	code := m.Run()
	if code == 0 {
		// go-redis looks for a lost server once a second, and so notices Close within one.
		redial := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
		if err := goleak.Find(redial); err != nil {
			os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
			code = 1
		}
	}
	return code
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
