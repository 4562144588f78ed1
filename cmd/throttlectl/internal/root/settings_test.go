//go:build unix

package root_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
)

// config writes the file of settings of a user, and returns the user's environment.
func config(t *testing.T, text string, more ...string) map[string]string {
	t.Helper()
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "throttlectl"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, "throttlectl", "config.json"), text)
	environment := map[string]string{"XDG_CONFIG_HOME": home}
	for i := 0; i < len(more); i += 2 {
		environment[more[i]] = more[i+1]
	}
	return environment
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Where a server comes from: a flag beats the environment, which beats the file; and what it excludes stays away, too.
func TestSettings(t *testing.T) {
	t.Parallel()
	open, locked := testserver.Redis(t), testserver.Redis(t, "--requirepass", "s3cret")
	dir := t.TempDir()
	password, wrong := filepath.Join(dir, "password"), filepath.Join(dir, "wrong")
	write(t, password, "s3cret\n")
	write(t, wrong, "wrong\n")
	topology := fixture.TopologyFile(t, fixture.GroupsOf(1, open))
	const away = "redis://127.0.0.1:1"
	openURL, lockedURL := "redis://"+open.Addr, "redis://"+locked.Addr
	for name, test := range map[string]struct {
		environment map[string]string
		args        []string
		asked       string // the server, empty if none answers
	}{
		"environment":          {map[string]string{"SLUICE_REDIS": openURL}, nil, open.Addr},
		"topology":             {map[string]string{"SLUICE_TOPOLOGY": topology}, nil, open.Addr},
		"two servers":          {map[string]string{"SLUICE_REDIS": openURL + " " + away}, nil, open.Addr},
		"file":                 {config(t, `{"redis": "`+openURL+`"}`), nil, open.Addr},
		"list":                 {config(t, `{"redis": ["`+openURL+`"]}`), nil, open.Addr},
		"flag first":           {map[string]string{"SLUICE_REDIS": away}, []string{"--redis", openURL}, open.Addr},
		"environment before":   {config(t, `{"redis": "`+away+`"}`, "SLUICE_REDIS", openURL), nil, open.Addr},
		"other kind in front":  {config(t, `{"topology": "nowhere.json", "user": "x", "db": 3, "tls": true}`, "SLUICE_REDIS", openURL), nil, open.Addr},
		"flag of other kind":   {map[string]string{"SLUICE_REDIS": away}, []string{"--topology", topology}, open.Addr},
		"password in file":     {config(t, `{"redis": "`+lockedURL+`", "password-file": "`+password+`"}`), nil, locked.Addr},
		"password variable":    {config(t, `{"redis": "`+lockedURL+`", "password-file": "`+wrong+`"}`, "REDISCLI_AUTH", "s3cret"), nil, locked.Addr},
		"password flag":        {map[string]string{"SLUICE_PASSWORD_FILE": wrong}, []string{"--redis", lockedURL, "--password-file", password}, locked.Addr},
		"password in the URL":  {config(t, `{"password-file": "`+wrong+`"}`, "SLUICE_REDIS", "redis://:s3cret@"+locked.Addr), nil, locked.Addr},
		"URL on command line":  {config(t, `{"password-file": "`+wrong+`"}`), []string{"--redis", "redis://:s3cret@" + locked.Addr}, locked.Addr},
		"no file":              {config(t, `{"redis": "`+openURL+`"}`), []string{"--config", "", "--redis", away}, ""},
		"relative directory":   {map[string]string{"XDG_CONFIG_HOME": "."}, []string{"--redis", openURL}, open.Addr},
		"prefix is taken over": {config(t, `{"prefix": "other:", "redis": "`+openURL+`"}`), nil, open.Addr},
	} {
		args := append([]string{"doctor", "--json", "--fail-on", "critical", "--ignore", "reach"}, test.args...)
		got := clitest.ExecuteIn(t, test.environment, args...)
		reached := strings.Contains(got.Stdout, `"server":"`+test.asked+`","role":"primary","reachable":true`)
		if test.asked == "" {
			reached = !strings.Contains(got.Stdout, `"reachable":true`)
		}
		if got.Code != cli.ExitOK || !reached {
			t.Errorf("%s: %+v", name, got)
		}
		if strings.Contains(got.Stdout+got.Stderr, "s3cret") {
			t.Errorf("%s: the password is told: %+v", name, got)
		}
		if name == "prefix is taken over" && !strings.Contains(got.Stdout, "~other:*") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Paths are relative to the file, wherever throttlectl is called.
func TestSettingsPaths(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	topology := fixture.TopologyFile(t, fixture.GroupsOf(1, server))
	file := filepath.Join(filepath.Dir(topology), "settings.json")
	write(t, file, `{"topology": "`+filepath.Base(topology)+`", "timeout": "7s"}`)
	for _, got := range []string{
		clitest.Succeed(t, "owner", "alice", "--config", file),
		func() string {
			return clitest.ExecuteIn(t, map[string]string{"SLUICE_CONFIG": file}, "owner", "alice").Stdout
		}(),
	} {
		if !strings.Contains(got, "g1") {
			t.Error(got)
		}
	}
	got := clitest.ExecuteIn(t, map[string]string{"SLUICE_CONFIG": file}, "__complete", "doctor", "--group", "")
	if !strings.HasPrefix(got.Stdout, "g1\n") {
		t.Errorf("groups of the topology aren't completed: %+v", got)
	}
}

func TestSettingsAreStrict(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.json")
	for text, want := range map[string]string{
		`{"topologie": "x"}`:                        `:1: "topologie": is no setting; did you mean topology?`,
		"{\n\"db\": \"1\",\n\"tls\": 1}":            `:2: "db": must be a whole number` + "\n" + `--config: ` + path + `:3: "tls": must be true or false`,
		`{"db": 1.5}`:                               `must be a whole number`,
		`{"db": -1, "topology": "x"}`:               `--db = -1: must be 0 or more`,
		`{"prefix": 1}`:                             `must be a string`,
		`{"prefix": ""}`:                            `must not be empty`,
		`{"prefix": null}`:                          `must be a string`,
		`{"tls": null}`:                             `must be true or false`,
		`{"redis": [1]}`:                            `must be a string, or a list of strings`,
		`{"redis": []}`:                             `must be a string, or a list of strings`,
		`{"user": "a", "user": "b"}`:                `is given twice`,
		`{"redis": "redis://u:s3cret@localhost:1"}`: `must have no password: "password-file" names a file that has it`,
		`{"redis": "redis://u:s3%%cret@h"}`:         `must have no password`,
		`{"url": "x"}`:                              `is no setting`, // of several commands, with different meanings
		`["redis"]`:                                 `must be an object`,
		`{"redis": "x"} x`:                          `invalid character`,
		`{"timeout": "soon"}`:                       `invalid duration`,
		`{"timeout": "0s"}`:                         `--timeout = 0s: must be more than 0`,
		`{"color": "pink"}`:                         `--color = "pink": must be one of auto, always, never`,
		`{"redis": "a", "topology": "b"}`:           `exactly one of --topology and --redis`,
	} {
		write(t, path, text)
		got := clitest.ExecuteIn(t, map[string]string{"SLUICE_CONFIG": path}, "doctor")
		if got.Code != cli.ExitUsage || !strings.Contains(got.Stderr, want) || strings.Contains(got.Stderr, "cret") {
			t.Errorf("%s: %+v, want %q", text, got, want)
		}
	}
	clitest.Fail(t, cli.ExitUsage, "no such file", "owner", "x", "--config", path+".not")
	clitest.Fail(t, cli.ExitUsage, "must be a regular file", "owner", "x", "--config", filepath.Dir(path))
	if got := clitest.ExecuteIn(t, map[string]string{"SLUICE_DB": "x"}, "doctor", "--topology", path); got.Code != cli.ExitUsage || !strings.Contains(got.Stderr, "SLUICE_DB: ") {
		t.Errorf("%+v", got)
	}
}

// No setting that is meant for looking at servers makes load put load on them.
func TestLoadTakesNoServersFromSettings(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	got := clitest.ExecuteIn(t, map[string]string{"SLUICE_REDIS": "redis://" + server.Addr}, "load", "--limit", "1/1s", "--for", "100ms")
	if got.Code != cli.ExitUsage {
		t.Errorf("%+v", got)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	environment := config(t, `{"user": "operator", "topology": "groups.json"}`, "SLUICE_REDIS", "redis://app:s3cret@h:1 redis://h:2", "SLUICE_USER", "me")
	got := clitest.ExecuteIn(t, environment, "config")
	if got.Code != cli.ExitOK || strings.Contains(got.Stdout, "s3cret") {
		t.Errorf("%+v", got)
	}
	file := filepath.Join(environment["XDG_CONFIG_HOME"], "throttlectl", "config.json")
	for _, want := range [][]string{
		{"file:", file},
		{"redis", "SLUICE_REDIS", "redis://app:xxxxx@h:1", "redis://h:2", "SLUICE_REDIS"},
		{"topology", "SLUICE_TOPOLOGY", filepath.Join(filepath.Dir(file), "groups.json"), file},
		{"user", "SLUICE_USER", "me", "SLUICE_USER"},
		{"ca", "SLUICE_CA", "-", "-"},
	} {
		if !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), strings.Join(want, " ")) {
			t.Errorf("no %q in\n%s", want, got.Stdout)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	t.Parallel()
	file := fixture.TopologyFile(t, fixture.ThreeGroups)
	for text, args := range map[string][]string{
		`unknown command "dcotor": did you mean doctor? (see throttlectl --help)`:                           {"dcotor"},
		`unknown command "kil": did you mean kill? (see throttlectl flag --help)`:                           {"flag", "kil"},
		`unknown flag: --tpology: did you mean --topology? (see throttlectl doctor --help)`:                 {"doctor", "--tpology", file},
		`unknown flag: --zzz (see throttlectl doctor --help)`:                                               {"doctor", "--zzz"},
		`--fail-on = "warnin": must be one of info, warning, critical; did you mean warning?`:               {"doctor", "--topology", file, "--fail-on", "warnin"},
		`replication, role, clock, acl, persistence, clients, sentinel, cluster; did you mean replication?`: {"doctor", "--topology", file, "--ignore", "replicaton"},
		`the topology has no such group; did you mean eu-1 or eu-2 or eu-3?`:                                {"doctor", "--topology", file, "--group", "eu1"},
		`--color = "allways": must be one of auto, always, never; did you mean always?`:                     {"doctor", "--topology", file, "--color", "allways"},
	} {
		clitest.Fail(t, cli.ExitUsage, text, args...)
	}
	policies := fixture.PoliciesFile(t, `{"policies": {"free": ["1/1s"], "gold": ["2/1s"]}, "default": "free"}`)
	clitest.Fail(t, cli.ExitFailure, `no policy "fre": there are free, gold; did you mean free?`,
		"peek", "k", "--topology", file, "--policies", policies, "--policy", "fre")
}

// Colors are for eyes: none in a pipe or in JSON, unless they are asked for.
func TestColors(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	const red = "\x1b[1;31mCRITICAL\x1b[0m"
	for _, test := range []struct {
		environment map[string]string
		args        []string
		colored     bool
	}{
		{nil, nil, false},
		{nil, []string{"--color", "auto"}, false},
		{nil, []string{"--color", "always"}, true},
		{nil, []string{"--color", "never"}, false},
		{map[string]string{"SLUICE_COLOR": "always"}, nil, true},
		{map[string]string{"SLUICE_COLOR": "always", "NO_COLOR": "1"}, []string{"--color", "never"}, false},
		{map[string]string{"NO_COLOR": "1"}, []string{"--color", "always"}, true}, // the command line weighs more
	} {
		args := append([]string{"doctor", "--redis", "redis://" + server.Addr}, test.args...)
		got := clitest.ExecuteIn(t, test.environment, args...)
		if strings.Contains(got.Stdout, red) != test.colored || strings.Contains(got.Stdout+got.Stderr, "\x1b") != test.colored {
			t.Errorf("%v, %q: %+v", test.environment, test.args, got)
		}
		got = clitest.ExecuteIn(t, test.environment, append(args, "--json")...)
		if strings.ContainsAny(got.Stdout, "\x1b\ue000\ue001\ue002\ue003") {
			t.Errorf("%v, %q: %+v", test.environment, test.args, got)
		}
	}
}
