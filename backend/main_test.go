package backend_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	_ "pgregory.net/rapid" // for its flags

	"github.com/sluice-go/sluice/internal/testtier"
)

// TestMain makes the random histories the same in every run (-rapid.seed and -rapid.checks ask for others), and looks
// for goroutines that outlive their backend.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "5") // most of them wait for servers; the command line may say otherwise
	if err := testtier.SetFlags("rapid.seed", "20260101", "rapid.nofailfile", "true"); err != nil {
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
	os.Exit(code)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
