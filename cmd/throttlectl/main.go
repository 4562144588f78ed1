// Command throttlectl is the operator's tool for applications that use Sluice.
//
//	go install github.com/sluice-go/sluice/cmd/throttlectl@latest
//
//	throttlectl flag set use-redis 25% --redis redis://localhost:6379/0 --redis-key app:flags
//	throttlectl flag watch use-redis --file /etc/app/flags.json
//	throttlectl migrate status --url http://localhost:8080/debug/vars
//	throttlectl peek alice --topology groups.json --policy api --limit 100/1m
//	throttlectl topology push groups.json
//	throttlectl doctor --topology groups.json
//
// throttlectl --help lists the commands and the exit codes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // go-redis would write to stderr, too, what it returns as an error
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what the first one didn't
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program, but for signals. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(stderr, "throttlectl:", err)
	}
	return exitCode(err)
}
