package root_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
)

func TestHelp(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"help.txt":                {"--help"},
		"help_flag.txt":           {"flag", "--help"},
		"help_flag_watch.txt":     {"flag", "watch", "--help"},
		"help_migrate_status.txt": {"help", "migrate", "status"},
		"help_peek.txt":           {"peek", "--help"},
		"help_policies_check.txt": {"policies", "check", "--help"},
		"help_top.txt":            {"top", "--help"},
		"help_topology_push.txt":  {"topology", "push", "--help"},
		"help_reshard_plan.txt":   {"reshard", "plan", "--help"},
	} {
		fixture.Golden(t, name, clitest.Succeed(t, args...))
	}
}

// Whatever is wrong with a command line is told once, on stderr, with exit code 2 and before anything is done.
func TestUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "flags.json")
	const away, address = "redis://127.0.0.1:1", "http://127.0.0.1:1/debug/vars"
	for _, test := range []struct {
		text string
		args []string
	}{
		{"no command", nil},
		{"no command", []string{"flag"}},
		{"no command", []string{"migrate", "--json"}},
		{`unknown command "bogus": want one of flag, `, []string{"bogus"}},
		{`unknown command "peek": want one of get, set, kill, revive, watch`, []string{"flag", "peek", "--file", file}},
		{"unknown flag: --bogus", []string{"flag", "get", "x", "--bogus"}},
		{"--timeout = 0s", []string{"flag", "get", "x", "--file", file, "--timeout", "0"}},
		{"--timeout = -1s", []string{"flag", "get", "x", "--file", file, "--timeout", "-1s"}},
		{"invalid argument", []string{"flag", "get", "x", "--file", file, "--timeout", "soon"}},

		{"0 arguments: want NAME", []string{"flag", "get", "--file", file}},
		{"2 arguments: want NAME", []string{"flag", "kill", "x", "y", "--file", file}},
		{"1 arguments: want NAME PERCENT", []string{"flag", "set", "x", "--file", file}},
		{"exactly one of --file and --redis", []string{"flag", "get", "x"}},
		{"exactly one of --file and --redis", []string{"flag", "watch", "x"}},
		{"exactly one of --file and --redis", []string{"flag", "set", "x", "1", "--file", file, "--redis", away, "--redis-key", "f"}},
		{"exactly one of --file and --redis", []string{"flag", "get", "x", "--redis-key", "f"}},
		{"--redis-key goes with --redis", []string{"flag", "set", "x", "1", "--file", file, "--redis-key", "f"}},
		{"--redis needs --redis-key", []string{"flag", "get", "x", "--redis", away}},
		{"--redis needs --redis-key", []string{"flag", "get", "x", "--redis", away, "--redis-key", ""}},
		{"--file is empty", []string{"flag", "get", "x", "--file", ""}},
		{"not a URL of a Redis server", []string{"flag", "get", "x", "--redis", "http://127.0.0.1:1", "--redis-key", "f"}},
		{"not a URL of a Redis server", []string{"flag", "get", "x", "--redis", away + "/one", "--redis-key", "f"}},
		{"not a URL", []string{"flag", "get", "x", "--redis", "redis://127.0.0.1:port", "--redis-key", "f"}},
		{"not a URL", []string{"flag", "get", "x", "--redis", "127.0.0.1:port", "--redis-key", "f"}},

		{"percent = 101: must be 0 to 100", []string{"flag", "set", "x", "101", "--file", file}},
		{"percent = 100.5: must be 0 to 100", []string{"flag", "set", "x", "100.5%", "--file", file}},
		{"percent = NaN: must be 0 to 100", []string{"flag", "set", "x", "NaN", "--file", file}},
		{"percent = +Inf: must be 0 to 100", []string{"flag", "set", "x", "inf", "--file", file}},
		{"percent = -1: must be 0 to 100", []string{"flag", "set", "--file", file, "--", "x", "-1"}},
		{`PERCENT = "abc": must be a number`, []string{"flag", "set", "x", "abc", "--file", file}},
		{`PERCENT = "": must be a number`, []string{"flag", "set", "x", "", "--file", file}},
		{`PERCENT = "5%%": must be a number`, []string{"flag", "set", "x", "5%%", "--file", file}},
		{`Name = "x y": must be`, []string{"flag", "get", "x y", "--file", file}},
		{`Name = "": must be`, []string{"flag", "set", "", "1", "--file", file}},
		{`Name = "x\n": must be`, []string{"flag", "kill", "x\n", "--file", file}},
		{`Name = "x y": must be`, []string{"flag", "watch", "x y", "--file", file}},
		{"--refresh = 0s", []string{"flag", "watch", "x", "--file", file, "--refresh", "0"}},
		{"Refresh = -1s", []string{"flag", "watch", "x", "--file", file, "--refresh", "-1s"}},

		{"1 arguments: want no arguments", []string{"migrate", "status", address}},
		{"--url is needed", []string{"migrate", "status"}},
		{"--url: want http://", []string{"migrate", "status", "--url", "127.0.0.1:1/debug/vars"}},
		{"--url: want http://", []string{"migrate", "status", "--url", "ftp://127.0.0.1/debug/vars"}},
		{"--url: want http://", []string{"migrate", "status", "--url", "http:///debug/vars"}},
		{"--name is empty", []string{"migrate", "status", "--url", address, "--name", ""}},
		{"--watch = 1ms: must be at least 100ms", []string{"migrate", "status", "--url", address, "--watch", "1ms"}},
		{"--watch = 0s: must be at least 100ms", []string{"migrate", "status", "--url", address, "--watch", "0"}},

		{"1 arguments: want no arguments", []string{"top", address}},
		{"--url is needed", []string{"top"}},
		{"--url is needed", []string{"top", "--url", ""}},
		{"--url: want http://host:port/debug/sluice", []string{"top", "--url", address, "--url", "127.0.0.1:1"}},
		{"is given twice", []string{"top", "--url", address, "--url", address}},
		{"--interval = 1ms: must be at least 100ms", []string{"top", "--url", address, "--interval", "1ms"}},
		{"--keys = -1: must be from 0 to 1000", []string{"top", "--url", address, "--keys", "-1"}},
		{`--sort = "age": must be one of decisions, denied`, []string{"top", "--url", address, "--sort", "age"}},
	} {
		clitest.Fail(t, cli.ExitUsage, test.text, test.args...)
	}
	clitest.Fail(t, cli.ExitFailure, "no such file", "flag", "get", "x", "--file", file) // none of them made it
}

// An error about a URL may end in a log: it must not repeat the URL's password, nor a token in it.
func TestErrorsHoldNoPassword(t *testing.T) {
	t.Parallel()
	serve := func(code int, text string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if code == http.StatusFound {
				http.Redirect(w, r, "http://127.0.0.1:1/?"+r.URL.RawQuery, code)
				return
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(s.Close)
		return s
	}
	refusing, strange, moved := serve(http.StatusForbidden, ""), serve(http.StatusOK, "{}"), serve(http.StatusFound, "")
	for _, args := range [][]string{
		{"flag", "get", "x", "--redis-key", "f", "--redis", "redis://:s3cret@127.0.0.1:port"},
		{"flag", "get", "x", "--redis-key", "f", "--redis", "http://:s3cret@127.0.0.1:1"},
		{"flag", "get", "x", "--redis-key", "f", "--redis", "redis://:s3cret@127.0.0.1:1"},
		{"flag", "get", "x", "--redis-key", "f", "--redis", "redis://:s3cret@127.0.0.1:1?db=one"},
		{"migrate", "status", "--url", "http://me:s3cret@127.0.0.1:port/"},
		{"migrate", "status", "--url", "http://me:s3cret@127.0.0.1:1/"},
		{"top", "--once", "--url", "http://me:s3cret@127.0.0.1:port/"},
		{"top", "--once", "--url", "http://me:s3cret@127.0.0.1:1/"},
		{"top", "--once", "--url", "http://127.0.0.1:1/?token=s3cret&all"},
		{"top", "--once", "--url", "http://127.0.0.1:1/?s3cret"},
		{"top", "--once", "--url", "http://s3cret@127.0.0.1:1/"},
		{"top", "--once", "--url", "http://127.0.0.1:1/?a=s3cret", "--url", "http://127.0.0.1:1/?a=s3cret"},
		{"top", "--once", "--url", refusing.URL + "/?token=s3cret"},
		{"top", "--once", "--url", strange.URL + "/?token=s3cret"},
		{"top", "--once", "--url", moved.URL + "/?token=s3cret"},
		{"migrate", "status", "--url", "http://127.0.0.1:1/?token=s3cret"},
		{"migrate", "status", "--url", refusing.URL + "/?token=s3cret"},
		{"migrate", "status", "--url", strange.URL + "/?token=s3cret"},
	} {
		if got := clitest.Execute(t, args...); got.Code == cli.ExitOK || got.Stderr == "" || strings.Contains(got.Stderr+got.Stdout, "s3cret") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// Rules that newRoot states for those who add commands.
func TestCommands(t *testing.T) {
	t.Parallel()
	root := root.New(cli.Streams{})
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.RunE == nil || cmd.Args == nil || cmd.Short == "" || cmd.Run != nil {
			t.Errorf("%s: needs RunE, Args and Short, and no Run", cmd.CommandPath())
		}
		if cmd != root && (cmd.PersistentPreRunE != nil || cmd.PersistentPreRun != nil) {
			t.Errorf("%s: hides the root's PersistentPreRunE", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
}

// A password that isn't escaped ends where the URL's path or query begins: no error may tell the rest.
func TestRedisURLKeepsSecrets(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://app:12/s3cret@127.0.0.1:1/0", "redis://app:12/s3cret@127.0.0.1", "redis://app:12?s3cret=@127.0.0.1:1", "redis://app:x/s3cret@h:1",
	} {
		got := clitest.Execute(t, "doctor", "--redis", url)
		if got.Code != cli.ExitUsage || strings.Contains(got.Stdout+got.Stderr, "s3cret") {
			t.Errorf("%s: %+v", url, got)
		}
	}
}
