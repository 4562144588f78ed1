//go:build unix

package doctor_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// leastRights are those that package backend says a user needs.
const leastRights = "on >pw resetkeys ~sl:* -@all +get +mget +set +evalsha +eval +time +info"

// user makes a user on a server and returns the URL to log in as it.
func user(t testing.TB, server *testserver.Server, name, rights string) string {
	t.Helper()
	args := []any{"ACL", "SETUSER", name}
	for word := range strings.FieldsSeq(rights) {
		args = append(args, word)
	}
	if err := server.Client().Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return "redis://" + name + ":pw@" + server.Addr
}

// diagnosed runs doctor, which must find something.
func diagnosed(t testing.TB, args ...string) clitest.Report {
	t.Helper()
	return clitest.Findings(t, append([]string{"doctor", "--fail-on", "info"}, args...)...)
}

// One that has all that Sluice asks for is healthy, also for a user who may do no more than applications need.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction", "--appendonly", "yes")
	got := clitest.Succeed(t, "doctor", "--redis", user(t, server, "app", leastRights), "--ignore", "version", "--fail-on", "info")
	if !strings.HasSuffix(got, "\nnothing found\n") {
		t.Errorf("got %s", got)
	}
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr, Username: "app", Password: "pw"}, "")
	fixture.Take(t, b, "alice", 1)                                            // these rights are enough indeed
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 2 { // with the marker of the take
		t.Errorf("doctor left %v", keys)
	}
}

func TestDoctorFindsEviction(t *testing.T) {
	t.Parallel()
	full := testserver.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
	if got := diagnosed(t, "--redis", full.Addr); !got.Has("critical", "memory", full.Addr, "volatile-lru: when it is full it evicts counts first") {
		t.Errorf("%+v", got)
	}
	set := func(name, value string) {
		t.Helper()
		if err := full.Client().ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("maxmemory", "0")
	if got := diagnosed(t, "--redis", "redis://"+full.Addr); !got.Has("warning", "memory", full.Addr, "volatile-lru: once there is a maxmemory") {
		t.Errorf("%+v", got)
	}
	for i := range 100 {
		full.Client().Set(t.Context(), fmt.Sprint("sl:api:", i), strings.Repeat("x", 1000), time.Hour)
	}
	used, err := strconv.ParseInt(full.Client().InfoMap(t.Context(), "memory").Val()["Memory"]["used_memory"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	set("maxmemory", strconv.FormatInt(used-50_000, 10))
	full.Client().Set(t.Context(), "sl:api:last", "x", time.Hour)
	if got := diagnosed(t, "--redis", "redis://"+full.Addr); !got.Has("warning", "memory", full.Addr, "keys were evicted") ||
		!got.Has("warning", "memory", full.Addr, "maxmemory is nearly used") {
		t.Errorf("%+v", got)
	}
}

// replicated is a group of a primary and a replica, whose link goes through a proxy.
func replicated(t *testing.T) (primary, replica *testserver.Server, link *testserver.Proxy, file string) {
	t.Helper()
	primary = testserver.Redis(t)
	link = testserver.NewProxy(t, primary.Addr)
	host, port, _ := strings.Cut(link.Addr, ":")
	replica = testserver.Redis(t, "--replicaof", host, port)
	replica.AwaitSync(primary)
	topology := fixture.GroupsOf(1, primary)
	topology.Groups[0].Replicas = []string{replica.Addr}
	return primary, replica, link, fixture.TopologyFile(t, topology)
}

// awaitFinding runs doctor until it has found something, for a server takes its time to notice it, too.
func awaitFinding(t *testing.T, severity, check, server, what string, args ...string) {
	t.Helper()
	for deadline := time.Now().Add(2 * fixture.Soon); ; {
		got := diagnosed(t, args...)
		if got.Has(severity, check, server, what) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s %s %q of %s: %+v", severity, check, what, server, got)
		}
	}
}

func TestDoctorFindsAStaleReplica(t *testing.T) {
	t.Parallel()
	primary, replica, _, file := replicated(t)
	args := []string{"--topology", file, "--max-lag", "1s", "--timeout", "500ms"}
	if got := diagnosed(t, args...); got.Has("critical", "replication", replica.Addr, "") {
		t.Fatalf("stale from the start: %+v", got)
	}
	primary.Pause()
	defer primary.Resume()
	awaitFinding(t, "critical", "replication", replica.Addr, "stale: it hasn't heard of its primary", args...)
	if got := diagnosed(t, args...); !got.Has("critical", "reach", primary.Addr, "can't be reached: ") {
		t.Errorf("%+v", got)
	}
}

func TestDoctorFindsACutLink(t *testing.T) {
	t.Parallel()
	_, replica, link, file := replicated(t)
	link.Cut()
	awaitFinding(t, "critical", "replication", replica.Addr, "its link to the primary is down: it isn't read, and a failover to it loses counts: primary "+link.Addr, "--topology", file)
	link.Heal()
	for deadline := time.Now().Add(2 * fixture.Soon); diagnosed(t, "--topology", file).Has("critical", "replication", replica.Addr, ""); {
		if time.Now().After(deadline) {
			t.Fatal("found though it is healed")
		}
	}
}

func TestDoctorFindsWrongRoles(t *testing.T) {
	t.Parallel()
	primary, replica, _, file := replicated(t)
	swapped := router.Topology{Epoch: 1, Groups: []router.Group{{Name: "g", Primary: replica.Addr, Replicas: []string{primary.Addr}}}}
	got := diagnosed(t, "--topology", fixture.TopologyFile(t, swapped))
	if !got.Has("critical", "role", replica.Addr, "says that it is a replica") || !got.Has("critical", "role", primary.Addr, "says that it is a primary") {
		t.Errorf("%+v", got)
	}
	other := testserver.Redis(t)
	foreign := router.Topology{Epoch: 1, Groups: []router.Group{{Name: "g", Primary: other.Addr, Replicas: []string{replica.Addr}}}}
	if got := diagnosed(t, "--topology", fixture.TopologyFile(t, foreign)); !got.Has("critical", "replication", replica.Addr, "doesn't copy the group's primary") {
		t.Errorf("%+v", got)
	}
	if got := diagnosed(t, "--topology", file); got.Has("critical", "role", primary.Addr, "") || got.Has("critical", "role", replica.Addr, "") ||
		!got.Has("warning", "persistence", primary.Addr, "1 replicas") {
		t.Errorf("%+v", got)
	}
	if err := replica.Client().ConfigSet(t.Context(), "replica-read-only", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if got := diagnosed(t, "--topology", file); !got.Has("warning", "replication", replica.Addr, "takes writes") {
		t.Errorf("%+v", got)
	}
}

// shifted is a server whose clock is off: it hands everything on to a real one, but adds to the answer of TIME.
func shifted(t testing.TB, real *testserver.Server, by time.Duration) string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: real.Addr, Protocol: 2, DisableIdentity: true})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close(); _ = client.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					args, err := readCommand(r)
					if err != nil {
						return
					}
					reply, err := client.Do(context.Background(), args...).Result()
					if strings.EqualFold(args[0].(string), "time") && err == nil {
						seconds, _ := strconv.ParseInt(reply.([]any)[0].(string), 10, 64)
						reply.([]any)[0] = strconv.FormatInt(seconds+int64(by/time.Second), 10)
					}
					if err == nil {
						writeReply(conn, reply)
					} else {
						fmt.Fprintf(conn, "-%v\r\n", err)
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func readCommand(r *bufio.Reader) (args []any, err error) {
	line := func(prefix string) (n int, err error) {
		text, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(text), prefix))
	}
	n, err := line("*")
	for range n {
		size, err := line("$")
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		args = append(args, string(word[:size]))
	}
	if len(args) > 0 && strings.EqualFold(args[0].(string), "hello") {
		args = []any{"no-such-command"} // the client goes on without
	}
	return args, err
}

func writeReply(w io.Writer, reply any) {
	switch reply := reply.(type) {
	case int64:
		fmt.Fprintf(w, ":%d\r\n", reply)
	case []any:
		fmt.Fprintf(w, "*%d\r\n", len(reply))
		for _, one := range reply {
			writeReply(w, one)
		}
	default:
		text := fmt.Sprint(reply)
		fmt.Fprintf(w, "$%d\r\n%s\r\n", len(text), text)
	}
}

func TestDoctorFindsAWrongClock(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	right, wrong := "redis://"+server.Addr, shifted(t, server, time.Hour)
	slow := shifted(t, server, -time.Hour)
	got := diagnosed(t, "--redis", right, "--redis", "redis://"+wrong, "--redis", "redis://"+slow)
	if !got.Has("critical", "clock", wrong, "ahead of the other clocks") || !got.Has("critical", "clock", slow, "behind the other clocks") ||
		got.Has("critical", "clock", server.Addr, "") {
		t.Errorf("%+v", got)
	}
	if got := diagnosed(t, "--redis", "redis://"+wrong); !got.Has("critical", "clock", wrong, "one of the two is wrong") {
		t.Errorf("%+v", got)
	}
	if got := diagnosed(t, "--redis", "redis://"+wrong, "--max-skew", "2h"); got.Has("critical", "clock", wrong, "") {
		t.Errorf("%+v", got)
	}
	// Where all servers agree, it is this host.
	got = diagnosed(t, "--redis", "redis://"+wrong, "--redis", "redis://"+shifted(t, server, time.Hour))
	if !got.Has("info", "clock", "", "this host's clock is ") || got.Has("critical", "clock", wrong, "") {
		t.Errorf("%+v", got)
	}
}

func TestDoctorLooksAtRights(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for _, test := range []struct{ name, rights, severity, what string }{
		{"default", "", "warning", "user default may do more than Sluice needs: FLUSHALL, FLUSHDB, CONFIG SET"},
		{"broad", "on >pw ~* +@all", "warning", "SHUTDOWN"},
		{"flusher", leastRights + " +flushall", "warning", "needs: FLUSHALL"},
		{"wide", strings.Replace(leastRights, "~sl:*", "~*", 1), "warning", "(all keys, not only sl:*)"},
		{"shy", leastRights + " -mget -set", "critical", "lacks +mget +set on keys sl:*"},
		{"elsewhere", strings.Replace(leastRights, "~sl:*", "~other:*", 1), "critical", "lacks +get +mget +set on keys sl:*"},
		{"mute", leastRights + " -eval", "critical", "may not EVAL"},
		{"blind", leastRights + " -info", "critical", "refuses what Sluice needs: NOPERM"},
	} {
		url := "redis://" + server.Addr
		if test.name != "default" {
			url = user(t, server, test.name, test.rights)
		}
		if got := diagnosed(t, "--redis", url); !got.Has(test.severity, "acl", server.Addr, test.what) {
			t.Errorf("%s: %+v", test.name, got)
		}
		if test.name == "flusher" && strings.Contains(clitest.Execute(t, "doctor", "--redis", url).Stdout, "FLUSHDB") {
			t.Errorf("%s: more than it may", test.name)
		}
	}
	elsewhere := user(t, server, "elsewhere", "reset "+strings.Replace(leastRights, "~sl:*", "~other:*", 1))
	if got := diagnosed(t, "--redis", elsewhere, "--prefix", "other:"); got.Has("critical", "acl", server.Addr, "") || got.Has("warning", "acl", server.Addr, "") {
		t.Errorf("%+v", got)
	}
	if got := diagnosed(t, "--redis", "redis://nobody:s3cret@"+server.Addr); !got.Has("critical", "reach", server.Addr, "refuses: WRONGPASS") {
		t.Errorf("%+v", got)
	}
}

// A node of a Redis Cluster needs other rights than a single server, and its advice names them.
func TestDoctorLooksAtRightsInCluster(t *testing.T) {
	t.Parallel()
	const clusterRights = "reset on >pw resetkeys ~sl:* -@all +get +set +evalsha +eval +time +info +ping +cluster|slots +command +readonly +asking"
	shard := testserver.Cluster(t, 1, 1)[0]
	primary, replica := shard.Primary, shard.Replicas[0]
	file := fixture.TopologyFile(t, router.Topology{Epoch: 1, Groups: []router.Group{{Name: "sharded", Cluster: []string{primary.Addr, replica.Addr}}}})
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("pw"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--topology", file, "--user", "app", "--password-file", password, "--ignore", "version,persistence,memory,replication"}
	grant := func(rights string) string {
		user(t, primary, "app", rights)
		return user(t, replica, "app", rights)
	}
	url := grant(clusterRights)
	clitest.Succeed(t, append([]string{"doctor", "--fail-on", "info"}, args...)...)
	for _, right := range []string{"get", "set", "evalsha", "ping", "command", "readonly", "asking"} {
		grant(clusterRights + " -" + right)
		got := diagnosed(t, args...)
		if !got.Has("critical", "acl", primary.Addr, "lacks +"+right+" on") || !got.Has("warning", "acl", replica.Addr, "lacks +"+right+" on") {
			t.Errorf("without %s: %+v", right, got)
		}
		if do := got.Findings[0].Do; !strings.HasSuffix(do, strings.TrimPrefix(clusterRights, "reset on >pw ")) {
			t.Errorf("without %s: %s", right, do)
		}
	}
	grant(strings.Replace(clusterRights, " +cluster|slots", "", 1)) // nobody tells of the nodes then: look at one
	if got := diagnosed(t, "--redis", url); !got.Has("warning", "acl", replica.Addr, "lacks +cluster|slots on keys") {
		t.Errorf("%+v", got)
	}
}

func TestDoctorFindsNoRoomForClients(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--maxclients", "3")
	for range 2 {
		conn, err := net.Dial("tcp", server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	awaitFinding(t, "warning", "clients", server.Addr, "3 of 3 are connected", "--redis", "redis://"+server.Addr)
}

func TestDoctorOfAllKinds(t *testing.T) {
	t.Parallel()
	watched := testserver.Redis(t)
	replica := testserver.Replica(t, watched)
	sentinels := testserver.Sentinels(t, "main", watched, 1)
	shards := testserver.Cluster(t, 2, 1)
	topology := router.Topology{Epoch: 1, Groups: []router.Group{
		{Name: "watched", Master: "main"}, {Name: "sharded", Cluster: []string{shards[0].Replicas[0].Addr}},
	}}
	for _, s := range sentinels {
		topology.Groups[0].Sentinels = append(topology.Groups[0].Sentinels, s.Addr)
	}
	file := fixture.TopologyFile(t, topology)
	got := clitest.Execute(t, "doctor", "--topology", file, "--ignore", "version,acl,persistence,memory", "--fail-on", "info")
	if got.Code != cli.ExitOK || !strings.Contains(got.Stdout, "nothing found") {
		t.Errorf("%+v", got)
	}
	for _, s := range []*testserver.Server{watched, replica, sentinels[2], shards[0].Primary, shards[1].Primary, shards[1].Replicas[0]} {
		if !strings.Contains(got.Stdout, s.Addr+" ") {
			t.Errorf("no %s in\n%s", s.Addr, got.Stdout)
		}
	}
	for _, args := range [][]any{{"SENTINEL", "REMOVE", "main"}, {"SENTINEL", "MONITOR", "main", "127.0.0.1", strings.TrimPrefix(replica.Addr, "127.0.0.1:"), 2}} {
		if err := sentinels[0].Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if got := diagnosed(t, "--topology", file, "--group", "watched"); !got.Has("warning", "sentinel", sentinels[0].Addr, "names "+replica.Addr+" as primary, others name "+watched.Addr) {
		t.Errorf("%+v", got)
	}
	if err := sentinels[2].Client().Do(t.Context(), "SENTINEL", "REMOVE", "main").Err(); err != nil {
		t.Fatal(err)
	}
	if got := diagnosed(t, "--topology", file, "--group", "watched"); !got.Has("warning", "sentinel", sentinels[2].Addr, "refuses: ") {
		t.Errorf("%+v", got)
	}
	for _, s := range []*testserver.Server{shards[0].Primary, shards[0].Replicas[0]} { // who has them, and who is asked
		if err := s.Client().Do(t.Context(), "CLUSTER", "DELSLOTS", 0, 1).Err(); err != nil {
			t.Fatal(err)
		}
	}
	awaitFinding(t, "critical", "cluster", "", "2 of 16384 slots have no server", "--topology", file, "--group", "sharded")
	sentinels[1].Kill()
	if got := diagnosed(t, "--topology", file, "--group", "watched"); !got.Has("warning", "reach", sentinels[1].Addr, "connection refused") {
		t.Errorf("%+v", got)
	}
	for _, s := range sentinels {
		s.Kill()
	}
	for _, s := range append([]*testserver.Server{shards[0].Primary}, shards[0].Replicas...) {
		s.Kill()
	}
	r := diagnosed(t, "--topology", file)
	if !r.Has("critical", "sentinel", "", "no sentinel names the primary") || !r.Has("critical", "cluster", "", "no node tells") {
		t.Errorf("%+v", r)
	}
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	file := fixture.TopologyFile(t, fixture.ThreeGroups)
	for text, args := range map[string][]string{
		"exactly one of --topology and": {},
		"no arguments":                  {"eu-1", "--topology", file},
		`--fail-on = "fatal"`:           {"--topology", file, "--fail-on", "fatal"},
		`--ignore = "luck"`:             {"--topology", file, "--ignore", "acl,luck"},
		`--group = "us-1"`:              {"--topology", file, "--group", "us-1"},
		"--max-lag = 0s":                {"--topology", file, "--max-lag", "0"},
		"--max-skew = -1s":              {"--topology", file, "--max-skew", "-1s"},
	} {
		clitest.Fail(t, cli.ExitUsage, text, append([]string{"doctor"}, args...)...)
	}
	clitest.Fail(t, cli.ExitFailure, "no such file", "doctor", "--topology", file+".not")
}

// What is found out while the operator interrupts is nothing that is found.
func TestInterruptedIsNoFinding(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	file := fixture.TopologyFile(t, fixture.ThreeGroups)
	for _, args := range [][]string{{"doctor", "--topology", file}, {"topology", "check", file}} {
		var b bytes.Buffer
		if code := root.Run(ctx, cli.Streams{In: os.Stdin, Out: &b, ErrOut: io.Discard}, args); code != cli.ExitFailure || b.Len() > 0 {
			t.Errorf("%v: exit code %d, %s", args, code, b.String())
		}
	}
}
