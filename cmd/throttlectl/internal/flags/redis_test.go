//go:build unix

package flags_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
)

const flagsKey = "app:flags"

// fill stores the flags of stored on database 1 of a server, and returns how to select them.
func fill(t *testing.T, server *testserver.Server) []string {
	t.Helper()
	pipe := server.Client().Pipeline()
	pipe.Do(t.Context(), "SELECT", 1)
	pipe.Del(t.Context(), flagsKey)
	pipe.HSet(t.Context(), flagsKey,
		"use-redis", `{"percent":12.5,"version":7,"killed":false}`, "new-limits", `{"percent":100,"version":3,"killed":true}`)
	pipe.Do(t.Context(), "SELECT", 0)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	return []string{"--redis", "redis://" + server.Addr + "/1", "--redis-key", flagsKey}
}

// The same commands print the same, wherever the flags are.
func TestFlagRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	fixture.Golden(t, "flag.txt", transcript(t, fill(t, server), false, script...))
	fixture.Golden(t, "flag.json", transcript(t, fill(t, server), true, script...))
	if n := server.Client().Exists(t.Context(), flagsKey).Val(); n != 0 {
		t.Error("written to database 0, not to that of the URL")
	}
}

// The tool greets a server with HELLO only: other commands may be refused by an ACL or by an older server.
func TestFlagRedisSendsOnlyWhatItNeeds(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	fill(t, server)
	proxy := testserver.NewProxy(t, server.Addr)
	var mu sync.Mutex
	var sent []string
	proxy.SetFault(func(args []string) testserver.Action {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, args[0])
		return testserver.Pass
	})
	clitest.Succeed(t, "flag", "get", "use-redis", "--redis", "redis://"+proxy.Addr+"/1", "--redis-key", flagsKey)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(sent, []string{"HELLO", "SELECT", "HGET"}) {
		t.Errorf("sent %v", sent)
	}
}

// A write whose reply is lost is not sent again, whatever the URL asks for, and is a failure.
func TestFlagRedisWritesOnce(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	fill(t, server)
	clitest.Succeed(t, "flag", "set", "use-redis", "1", "--redis", "redis://"+server.Addr+"/1", "--redis-key", flagsKey) // loads the script
	proxy := testserver.NewProxy(t, server.Addr)
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			return testserver.CloseAfter
		}
		return testserver.Pass
	})
	server.ResetStats(t)
	clitest.Fail(t, cli.ExitFailure, `flag "use-redis"`, "flag", "set", "use-redis", "25",
		"--redis", "redis://"+proxy.Addr+"/1?max_retries=3", "--redis-key", flagsKey)
	if n := server.Stats(t)["evalsha"]; n != 1 {
		t.Errorf("sent %d times", n)
	}
}

func TestFlagRedisFailures(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	source := fill(t, server)
	on := func(args ...string) []string { return append(append([]string{"flag"}, args...), source...) }
	clitest.Fail(t, cli.ExitFailure, "no such flag", on("get", "absent")...)
	clitest.Fail(t, cli.ExitFailure, "no such flag", on("revive", "absent")...)
	clitest.Fail(t, cli.ExitFailure, "no such flag", "flag", "get", "use-redis", "--redis", "redis://"+server.Addr, "--redis-key", flagsKey)

	server.Pause()
	begin := time.Now()
	for _, args := range [][]string{{"get", "use-redis"}, {"set", "use-redis", "1"}} {
		clitest.Fail(t, cli.ExitFailure, "deadline exceeded", append(on(args...), "--timeout", "100ms")...)
	}
	if took := time.Since(begin); took > cli.DefaultTimeout {
		t.Errorf("took %v with a timeout of 100ms", took)
	}
	server.Resume()
	server.Kill()
	clitest.Fail(t, cli.ExitFailure, "connection refused", on("get", "use-redis")...)
	clitest.Fail(t, cli.ExitFailure, "connection refused", on("kill", "use-redis")...)
}

// What somebody broke by hand can be killed and set all the same.
func TestFlagRedisRepairs(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	if err := server.Client().HSet(t.Context(), flagsKey, "x", "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	source := []string{"--redis", "redis://" + server.Addr, "--redis-key", flagsKey}
	clitest.Fail(t, cli.ExitFailure, "invalid character", append([]string{"flag", "get", "x"}, source...)...)
	if got := clitest.Succeed(t, append([]string{"flag", "kill", "x"}, source...)...); !strings.HasPrefix(got, "x: unreadable -> 0% (killed, ") {
		t.Errorf("printed %q", got)
	}
	if err := server.Client().HSet(t.Context(), flagsKey, "x", "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	got := clitest.Succeed(t, append([]string{"flag", "set", "x", "5", "--json"}, source...)...)
	if !strings.Contains(got, `"old":null,"old_error":"redis key`) || !strings.Contains(got, `"new":{"percent":5,`) {
		t.Errorf("printed %q", got)
	}
}

// With a refresh of an hour, only the push can tell.
func TestFlagWatchRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	source := fill(t, server)
	s := clitest.Start(t, append([]string{"flag", "watch", "use-redis", "--refresh", "1h"}, source...)...)
	s.Await(&s.Stdout, "12.5% version 7 split\n")
	for deadline := time.Now().Add(fixture.Soon); ; time.Sleep(2 * time.Millisecond) {
		if n := server.Client().PubSubNumSub(t.Context(), flagsKey).Val()[flagsKey]; n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no subscription")
		}
	}
	for _, percent := range []int{25, 50} {
		clitest.Succeed(t, append([]string{"flag", "set", "use-redis", fmt.Sprint(percent)}, source...)...)
		s.Await(&s.Stdout, fmt.Sprintf(" %d%% version ", percent))
	}
	if code := s.End(); code != cli.ExitOK || s.Stderr.String() != "" {
		t.Errorf("exit code %d, stderr %q", code, s.Stderr.String())
	}
}
