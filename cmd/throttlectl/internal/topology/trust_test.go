//go:build unix

package topology_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// A topology published with the largest epoch, and that processes refuse, is taken away; then processes bring theirs
// back, and a push goes on as ever. These are the steps of the runbook.
func TestTopologyWithdraw(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, next := fixture.GroupsOf(1, one), fixture.After(fixture.GroupsOf(2, one, two), fixture.GroupsOf(1, one))
	file, nextFile := fixture.TopologyFile(t, first), fixture.TopologyFile(t, next)
	rejected := make(chan router.Event, 16)
	app, err := router.Open(first, router.Config{Backend: redisbackend.Config{Timeout: fixture.Soon}, OnEvent: func(e router.Event) {
		if e.Kind == router.TopologyRejected {
			rejected <- e
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	fixture.AwaitEpoch(t, one, 1)
	if got := clitest.Execute(t, "topology", "withdraw", "7", "--topology", file); got.Code != cli.ExitFailure || !strings.Contains(got.Stderr, "epoch 7 is not published there") {
		t.Errorf("%+v", got)
	}
	bad := router.Topology{Epoch: uint64(limit.MaxCount), Baseline: true, Groups: []router.Group{{Name: "x", Primary: "203.0.113.9:6379"}}}
	fixture.Publish(t, one, bad)
	select {
	case e := <-rejected:
		if !strings.Contains(e.String(), "must be at most 1000001") || !strings.Contains(e.String(), `"203.0.113.9:6379"`) {
			t.Error(e)
		}
	case <-time.After(4 * fixture.Soon):
		t.Fatal("the running process doesn't say that it was refused")
	}
	fixture.Take(t, app, "alice", 3)
	clitest.Fail(t, cli.ExitFailure, "throttlectl topology withdraw removes it", "topology", "push", nextFile)
	clitest.Fail(t, cli.ExitFailure, "AllowedAddresses", fixture.With(fixture.APIFlags, "peek", "alice", "--topology", file)...)
	clitest.Fail(t, cli.ExitUsage, `EPOCH = "last"`, "topology", "withdraw", "last", "--topology", file)
	clitest.Fail(t, cli.ExitUsage, "--topology is needed", "topology", "withdraw", "1")
	got := clitest.Succeed(t, "topology", "withdraw", "9007199254740991", "--topology", file)
	if !strings.Contains(got, "9007199254740991  yes") {
		t.Error(got)
	}
	fixture.AwaitEpoch(t, one, 1) // the process brings it back
	clitest.Succeed(t, "topology", "push", nextFile)
	fixture.AwaitEpoch(t, two, 2)

	one.Client().Set(t.Context(), "sl:topology", "garbage", 0)
	clitest.Fail(t, cli.ExitFailure, "corrupt", "topology", "push", nextFile)
	if got := clitest.Succeed(t, "topology", "withdraw", "0", "--topology", file); !strings.Contains(got, "no topology  yes") {
		t.Error(got)
	}
	clitest.Succeed(t, "topology", "push", nextFile)
}

// Topologies are signed by who has the private key, and published as they were signed.
func TestTopologySign(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	dir := t.TempDir()
	private, public := filepath.Join(dir, "topology.key"), filepath.Join(dir, "topology.key.pub")
	clitest.Succeed(t, "topology", "keygen", private)
	open, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	clitest.Fail(t, cli.ExitFailure, "file exists", "topology", "keygen", private)
	if again, err := os.ReadFile(public); err != nil || string(again) != string(open) {
		t.Errorf("a second keygen has changed the public key: %q, %v", again, err)
	}
	halfway := filepath.Join(dir, "halfway.key")
	if err := os.WriteFile(halfway, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Fail(t, cli.ExitFailure, "file exists", "topology", "keygen", halfway)
	if _, err := os.Stat(halfway + ".pub"); !os.IsNotExist(err) {
		t.Errorf("left a public key without its private one: %v", err)
	}
	keys, err := router.ParseTopologyKeys(open)
	if err != nil {
		t.Fatal(err)
	}
	first, next := fixture.GroupsOf(1, one), fixture.After(fixture.GroupsOf(2, one, two), fixture.GroupsOf(1, one))
	sign := func(topology router.Topology) string {
		t.Helper()
		text := clitest.Succeed(t, "topology", "sign", fixture.TopologyFile(t, topology), "--key-file", private)
		path := filepath.Join(t.TempDir(), "signed.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	changed := make(chan router.Event, 16)
	app, err := router.Open(first, router.Config{Backend: redisbackend.Config{Timeout: fixture.Soon}, TopologyKeys: keys, OnEvent: func(e router.Event) { changed <- e }})
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	signed := sign(next)
	clitest.Succeed(t, "topology", "push", signed)
	for deadline := time.After(4 * fixture.Soon); ; {
		select {
		case e := <-changed:
			if e.Kind == router.TopologyRejected {
				t.Fatal(e)
			}
			if e.Kind != router.TopologyChanged {
				continue
			}
		case <-deadline:
			t.Fatal("the running process didn't take it over")
		}
		break
	}
	key := fixture.MovingKey(t, first, next)
	if app.Owner(key) != "g2" {
		t.Error("not taken over")
	}
	fixture.Take(t, app, key, 7)
	args := fixture.With(fixture.APIFlags, "peek", key, "--topology", fixture.TopologyFile(t, first))
	if got := clitest.Succeed(t, append(args, "--topology-key", public, "--json")...); !strings.Contains(got, `"used":7`) {
		t.Error(got)
	}
	clitest.Fail(t, cli.ExitFailure, "TopologyKeys", args...)
	clitest.Fail(t, cli.ExitFailure, "epoch 2 is signed, and the file is not", "topology", "push", fixture.TopologyFile(t, fixture.After(fixture.GroupsOf(3, one, two), next)))

	clitest.Fail(t, cli.ExitUsage, "--key-file is needed", "topology", "sign", signed)
	clitest.Fail(t, cli.ExitFailure, "is no PEM", "topology", "sign", signed, "--key-file", signed)
	clitest.Fail(t, cli.ExitFailure, "has no private key of Ed25519", "topology", "sign", signed, "--key-file", public)
	clitest.Fail(t, cli.ExitFailure, "must be public keys of Ed25519 in PEM", append(args, "--topology-key", private)...)
	unlinked := fixture.GroupsOf(3, one)
	unlinked.Baseline = false
	clitest.Fail(t, cli.ExitFailure, "must be the topology before epoch 3", "topology", "sign", fixture.TopologyFile(t, unlinked), "--key-file", private)

	var forged router.Topology
	text, err := os.ReadFile(signed)
	if err == nil {
		err = json.Unmarshal(text, &forged)
	}
	if err != nil || forged.Verify(ed25519.PublicKey(keys[0])) != nil {
		t.Fatal(err)
	}
}

// What is published under an epoch stays: a push of the same owners with another signature, or another "previous", is refused, and
// a check says what differs.
func TestTopologyPushOfOtherText(t *testing.T) {
	t.Parallel()
	server, dir := testserver.Redis(t), t.TempDir()
	private, public := make([]string, 2), make([]string, 2)
	for i := range private {
		private[i] = filepath.Join(dir, fmt.Sprint(i))
		public[i] = private[i] + ".pub"
		clitest.Succeed(t, "topology", "keygen", private[i])
	}
	sign := func(topology router.Topology, key string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "signed.json")
		if err := os.WriteFile(path, []byte(clitest.Succeed(t, "topology", "sign", fixture.TopologyFile(t, topology), "--key-file", key)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := fixture.GroupsOf(1, server)
	second := fixture.After(fixture.GroupsOf(2, server), first)
	file := fixture.TopologyFile(t, second)
	clitest.Succeed(t, "topology", "push", file)
	old := sign(second, private[0])
	clitest.Fail(t, cli.ExitFailure, "epoch 2 is published with no signature. To publish the file, write it as epoch 3", "topology", "push", old)
	if got := checked(t, old); !got.Has("warning", "published", server.Addr, "epoch 2 is published with no signature, and the file has one") {
		t.Errorf("%+v", got)
	}
	if got := checked(t, file, "--topology-key", public[0]); !got.Has("critical", "signature", server.Addr, "don't take over epoch 2") {
		t.Errorf("%+v", got)
	}
	clitest.Fail(t, cli.ExitFailure, `epoch 2 is published with another "previous"`, "topology", "push", fixture.TopologyFile(t, fixture.GroupsOf(2, server)))
	if got := clitest.Succeed(t, "topology", "check", fixture.TopologyFile(t, fixture.GroupsOf(2, server))); !strings.Contains(got, `INFO published: g1 `+server.Addr+`: epoch 2 is published with another "previous"`) {
		t.Error(got)
	}

	third := fixture.After(fixture.GroupsOf(3, server), second)
	signed, again := sign(third, private[0]), sign(third, private[1])
	for range 2 {
		clitest.Succeed(t, "topology", "push", signed)
	}
	clitest.Succeed(t, "topology", "check", signed, "--topology-key", public[0])
	clitest.Fail(t, cli.ExitFailure, "epoch 3 is published with another signature", "topology", "push", again)
	got := checked(t, again, "--topology-key", public[0])
	if !got.Has("warning", "published", server.Addr, "epoch 3 is published with another signature") || !got.Has("critical", "signature", "", "can't start with the file") {
		t.Errorf("%+v", got)
	}
	clitest.Succeed(t, "topology", "push", sign(fixture.After(fixture.GroupsOf(4, server), third), private[1]))
}

// The rights of operators, as docs/security.md has them, are enough.
func TestTopologyRights(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	for name, rights := range map[string]string{
		"push":     "~sl:topology +evalsha +eval +get +set",
		"withdraw": "~sl:topology +get +watch +multi +exec +del",
	} {
		args := []any{"ACL", "SETUSER", name, "reset", "on", ">secret", "resetchannels"}
		for _, right := range strings.Fields(rights) {
			args = append(args, right)
		}
		if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := fixture.TopologyFile(t, fixture.GroupsOf(3, s))
	clitest.Succeed(t, "topology", "push", file, "--user", "push", "--password-file", password)
	clitest.Succeed(t, "topology", "withdraw", "3", "--topology", file, "--user", "withdraw", "--password-file", password)
	if n := s.Client().Exists(t.Context(), "sl:topology").Val(); n != 0 {
		t.Error("it is still there")
	}
}
