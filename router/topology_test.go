package router_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

const goodTopology = `{
	"epoch": 3,
	"baseline": true,
	"seed": 18446744073709551615,
	"groups": [
		{"name": "eu-1", "primary": "10.0.0.1:6379", "replicas": ["10.0.0.2:6379", "[2001:db8::1]:6379"]},
		{"name": "eu-2", "weight": 2, "primary": "redis-2.example.com:6379"},
		{"name": "eu-3", "sentinels": ["10.0.0.9:26379"], "master": "main"},
		{"name": "eu-4", "sentinels": ["10.0.0.9:26379"], "master": "other"},
		{"name": "eu-5", "cluster": ["10.0.2.1:6379", "10.0.2.2:6379"]}
	]
}`

func TestLoadTopology(t *testing.T) {
	path := filepath.Join(t.TempDir(), "groups.json")
	if err := os.WriteFile(path, []byte(goodTopology), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := router.LoadTopology(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Epoch != 3 || got.Seed != 1<<64-1 || len(got.Groups) != 5 {
		t.Errorf("loaded %+v", got)
	}
	want := router.Group{Name: "eu-1", Primary: "10.0.0.1:6379", Replicas: []string{"10.0.0.2:6379", "[2001:db8::1]:6379"}}
	if !reflect.DeepEqual(got.Groups[0], want) {
		t.Errorf("first group: %+v, want %+v", got.Groups[0], want)
	}

	if _, err := router.LoadTopology(path + ".gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"groups": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := router.LoadTopology(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("bad file: %v, want its name", err)
	}
}

func TestParseTopologyRefuses(t *testing.T) {
	group := func(members string) string { return `{"groups": [{` + members + `}]}` }
	for name, test := range map[string]struct {
		text   string
		fields []string
	}{
		"nothing":             {"", []string{"topology"}},
		"null":                {"null", []string{"groups"}},
		"no object":           {"[]", []string{"topology"}},
		"cut off":             {goodTopology[:len(goodTopology)-2], []string{"topology"}},
		"trailing object":     {goodTopology + "{}", []string{"topology"}},
		"trailing garbage":    {goodTopology + "x", []string{"topology"}},
		"unknown member":      {group(`"name": "a", "primary": "h:1", "readonly": true`), []string{"topology"}},
		"member in capitals":  {group(`"Name": "a", "primary": "h:1"`), []string{"topology"}},
		"member folded":       {group(`"name": "a", "primary": "h:1", "replica\u017f": ["h:2"]`), []string{"topology"}},
		"folded and plain":    {`{"seed": 1, "ſeed": 2, "groups": [{"name": "a", "primary": "h:1"}]}`, []string{"topology"}},
		"member given twice":  {group(`"name": "a", "primary": "h:1", "primary": "h:2"`), []string{"topology"}},
		"negative epoch":      {`{"epoch": -1, "groups": [{"name": "a", "primary": "h:1"}]}`, []string{"topology"}},
		"weight not integral": {group(`"name": "a", "primary": "h:1", "weight": 1.5`), []string{"topology"}},

		"no groups":       {`{"epoch": 1}`, []string{"groups"}},
		"no name":         {group(`"primary": "h:1"`), []string{"groups[0].name"}},
		"name with space": {group(`"name": "a b", "primary": "h:1"`), []string{"groups[0].name"}},
		"name too long":   {group(`"name": "` + strings.Repeat("a", 65) + `", "primary": "h:1"`), []string{"groups[0].name"}},
		"negative weight": {group(`"name": "a", "primary": "h:1", "weight": -1`), []string{"groups[0].weight"}},
		"huge weight":     {group(`"name": "a", "primary": "h:1", "weight": 1025`), []string{"groups[0].weight"}},
		"empty group":     {group(`"name": "a"`), []string{"groups[0]"}},
		"two kinds":       {group(`"name": "a", "primary": "h:1", "cluster": ["h:2"]`), []string{"groups[0]"}},
		"three kinds": {
			group(`"name": "a", "primary": "h:1", "cluster": ["h:2"], "sentinels": ["h:3"], "master": "m"`), []string{"groups[0]"},
		},
		"sentinel with replicas": {group(`"name": "a", "sentinels": ["h:1"], "master": "m", "replicas": ["h:2"]`), []string{"groups[0]"}},
		"replicas alone":         {group(`"name": "a", "replicas": ["h:1"]`), []string{"groups[0].primary"}},
		"master alone":           {group(`"name": "a", "master": "m"`), []string{"groups[0].sentinels"}},
		"sentinels alone":        {group(`"name": "a", "sentinels": ["h:1"]`), []string{"groups[0].master"}},

		"name twice": {
			`{"groups": [{"name": "a", "primary": "h:1"}, {"name": "a", "primary": "h:2"}]}`, []string{"groups[1].name"},
		},
		"primary twice": {
			`{"groups": [{"name": "a", "primary": "h:1"}, {"name": "b", "primary": "h:1"}]}`, []string{"groups[1].primary"},
		},
		"primary is a replica":      {group(`"name": "a", "primary": "h:1", "replicas": ["h:1"]`), []string{"groups[0].replicas[0]"}},
		"same host in capitals":     {group(`"name": "a", "primary": "h:1", "replicas": ["H:1"]`), []string{"groups[0].replicas[0]"}},
		"same host with a dot":      {group(`"name": "a", "primary": "h:1", "replicas": ["h.:1"]`), []string{"groups[0].replicas[0]"}},
		"same IPv6 address":         {group(`"name": "a", "primary": "[::1]:1", "replicas": ["[0:0::1]:1"]`), []string{"groups[0].replicas[0]"}},
		"same IPv4 address, mapped": {group(`"name": "a", "primary": "1.2.3.4:1", "replicas": ["[::ffff:1.2.3.4]:1"]`), []string{"groups[0].replicas[0]"}},
		"cluster node twice":        {group(`"name": "a", "cluster": ["h:1", "h:1"]`), []string{"groups[0].cluster[1]"}},
		"sentinel twice":            {group(`"name": "a", "sentinels": ["h:1", "h:1"], "master": "m"`), []string{"groups[0].sentinels[1]"}},
		"sentinel is a node": {
			`{"groups": [{"name": "a", "sentinels": ["h:1"], "master": "m"}, {"name": "b", "primary": "h:1"}]}`,
			[]string{"groups[0].sentinels[0]"},
		},
		"master twice": {
			`{"groups": [{"name": "a", "sentinels": ["h:1", "h:2"], "master": "m"}, {"name": "b", "sentinels": ["h:2"], "master": "m"}]}`,
			[]string{"groups[1].master"},
		},
		"all at once": {
			`{"groups": [{"name": "", "primary": "h"}, {"name": "b", "weight": 5000}, {"name": "c", "primary": "g"}]}`,
			[]string{"groups[0].name", "groups[0].primary", "groups[1].weight", "groups[1]", "groups[2].primary"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := router.ParseTopology([]byte(test.text))
			if fields := refusedFields(err); !slices.Equal(fields, test.fields) {
				t.Errorf("refused %q, want %q: %v", fields, test.fields, err)
			}
			if !reflect.DeepEqual(got, router.Topology{}) {
				t.Errorf("returned %+v with the error", got)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{
		"", "host", ":6379", "host:", "host:0", "host:65536", "host:-1", "host:+1", "host:06379", "host:redis", "host:6379:1",
		"::1:6379", "[::1]", "ho st:6379", "host\n:6379", "-host:6379", "host/0:6379", "redis://host:6379", "user@host:6379",
		"10.0.0.256:6379", "10.0.1:6379",
	} {
		topology := router.Topology{Groups: []router.Group{{Name: "a", Primary: "h:1", Replicas: []string{bad}}}}
		if got := refusedFields(topology.Validate()); !slices.Equal(got, []string{"groups[0].replicas[0]"}) {
			t.Errorf("%q: refused %q", bad, got)
		}
	}
	for _, good := range []string{
		"localhost:6379", "redis_1:6379", "a.b-c.example:1", "10.0.0.1:65535", "[::1]:6379", "[fe80::1%eth0]:6379", "1and1.example:6379",
	} {
		topology := router.Topology{Groups: []router.Group{{Name: "a", Primary: good}}}
		if err := topology.Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	one := router.Topology{Groups: []router.Group{{Name: "a", Primary: "localhost:1"}}}
	topology, err := router.ParseTopology([]byte(goodTopology))
	if err != nil {
		t.Fatal(err)
	}
	_, err = router.Open(topology, router.Config{Seed: 1})
	if got := refusedFields(err); !slices.Equal(got, []string{"Seed"}) {
		t.Errorf("refused %q: %v", got, err)
	}
	_, err = router.Open(topology, router.Config{Redis: &redis.Options{DB: 1}})
	if got := refusedFields(err); !slices.Equal(got, []string{"Redis.DB"}) {
		t.Errorf("another database of a cluster: refused %q: %v", got, err)
	}
	for kind, node := range map[string]backend.Backend{"no node": nil, "a nil pointer": (*memory.Memory)(nil)} {
		_, err := router.Open(one, router.Config{Node: func(string) (backend.Backend, error) { return node, nil }})
		if got := refusedFields(err); !slices.Equal(got, []string{"Node"}) {
			t.Errorf("%s: refused %q: %v", kind, got, err)
		}
	}
	if _, err := router.Open(router.Topology{}, router.Config{}); !slices.Equal(refusedFields(err), []string{"groups"}) {
		t.Errorf("empty topology: %v", err)
	}
	var bad *limit.Error
	if _, err := router.Open(one, router.Config{Backend: redisbackend.Config{Prefix: "{"}}); !errors.As(err, &bad) {
		t.Errorf("bad prefix: %v", err)
	}
	nodes := []router.NodeGroup{{Name: "a", Primary: newMemory(t)}}
	_, err = router.New(nodes, router.Config{Redis: &redis.Options{}, Sentinel: &redis.Options{}})
	if got := refusedFields(err); !slices.Equal(got, []string{"Redis", "Sentinel"}) {
		t.Errorf("New with redis options: refused %q: %v", got, err)
	}
}

// FuzzLoadTopology: whatever the bytes, there is an error or a valid topology that means the same when it is written
// and read again.
func FuzzLoadTopology(f *testing.F) {
	f.Add([]byte(goodTopology))
	f.Add([]byte(`{"groups":[{"name":"a","primary":"h:1"}]}`))
	f.Add([]byte(`{"groups":[{"name":"a","primary":"[::]:1","replicas":["h:2"]},{"name":"b","weight":1024,"cluster":["h:3"]}]}x`))
	f.Add([]byte(`{"groups":null,"groups":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		topology, err := router.ParseTopology(data)
		if err != nil {
			if len(refusedFields(err)) == 0 {
				t.Errorf("untyped error: %v", err)
			}
			return
		}
		if err := topology.Validate(); err != nil {
			t.Fatalf("parsed what isn't valid: %v", err)
		}
		text, err := json.Marshal(topology)
		if err != nil {
			t.Fatal(err)
		}
		again, err := router.ParseTopology(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		twice, _ := json.Marshal(again) // an empty list and none are the same
		if string(text) != string(twice) {
			t.Errorf("%s became %s", text, twice)
		}
	})
}
