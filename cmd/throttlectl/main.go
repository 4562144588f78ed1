// Command throttlectl is the operator's tool for applications that use Sluice.
//
//	go install github.com/sluice-go/sluice/cmd/throttlectl@latest
//
//	throttlectl top --url http://localhost:8081/debug/sluice              # what applications decide, live
//	throttlectl peek alice --topology groups.json --policies policies.json # what is counted of a key
//	throttlectl usage alice --redis redis://localhost:6379/0 --limit 240/1h~1m --interval 10m
//	throttlectl reset alice --topology groups.json --policy api --limit 100/1m
//	throttlectl grant alice 1000 --topology groups.json --policy api --limit 100/1m
//	throttlectl owner alice --topology groups.json                         # where a key is counted
//	throttlectl policies check policies.json                               # a file of named policies, before it is rolled out
//	throttlectl topology check groups.json                                 # and push, which brings it into force
//	throttlectl ring --topology groups.json                                # how keys are shared out over the groups
//	throttlectl reshard plan old.json new.json                             # what a change of the topology moves
//	throttlectl doctor --topology groups.json                              # what is wrong with the servers
//	throttlectl flag set use-redis 25% --file /etc/app/flags.json          # and get, kill, revive, watch
//	throttlectl migrate status --url http://localhost:8080/debug/vars      # from one backend to another
//	throttlectl simulate --limit 10/1s --shape poisson:8/s                 # a policy, without a server
//	throttlectl load --redis redis://localhost:6379/0 --limit 100/1s       # on servers, and whether limits hold
//
// Flags that are left out come from the environment or a file: throttlectl config --help. throttlectl --help lists the commands
// and the exit codes.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
)

func main() {
	redisbackend.LogTo(nil) // go-redis returns the same as errors; --verbose prints it
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what the first one didn't
	os.Exit(root.Run(ctx, cli.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr, Getenv: os.Getenv}, os.Args[1:]))
}
