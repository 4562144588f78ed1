package router_test

import (
	"testing"

	"github.com/sluice-go/sluice/router"
)

func TestGroupString(t *testing.T) {
	for want, g := range map[string]router.Group{
		"no servers":                    {Name: "a", Weight: 2},
		"primary h:1":                   {Primary: "h:1"},
		"primary h:1, replicas h:2 h:3": {Primary: "h:1", Replicas: []string{"h:2", "h:3"}},
		"master m of sentinels h:1 h:2": {Sentinels: []string{"h:1", "h:2"}, Master: "m"},
		"cluster h:1 h:2":               {Cluster: []string{"h:1", "h:2"}},
		"primary h:1 and cluster h:2":   {Primary: "h:1", Cluster: []string{"h:2"}}, // not valid, but printed in an error
	} {
		if got := g.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestGroupContinues(t *testing.T) {
	node := func(primary string, replicas ...string) router.Group {
		return router.Group{Primary: primary, Replicas: replicas}
	}
	sentinels := func(master string, addresses ...string) router.Group {
		return router.Group{Master: master, Sentinels: addresses}
	}
	cluster := func(addresses ...string) router.Group { return router.Group{Cluster: addresses} }
	for name, test := range map[string]struct {
		before, after router.Group
		want          bool
	}{
		"the same":                 {node("h:1"), node("h:1"), true},
		"another spelling":         {node("Host:1"), node("host.:1"), true},
		"another primary":          {node("h:1"), node("h:2"), false},
		"a promoted replica":       {node("h:1", "h:2"), node("h:2", "h:1"), true},
		"a new primary":            {node("h:1", "h:2"), node("h:3", "h:1", "h:2"), false},
		"other replicas":           {node("h:1", "h:2"), node("h:1", "h:3"), true},
		"to sentinels":             {node("h:1"), sentinels("m", "h:1"), false},
		"from sentinels":           {sentinels("m", "h:1"), node("h:1"), false},
		"a sentinel more":          {sentinels("m", "h:1"), sentinels("m", "h:2", "h:1"), true},
		"another master":           {sentinels("m", "h:1"), sentinels("n", "h:1"), false},
		"to a cluster":             {node("h:1"), cluster("h:1"), false},
		"other nodes of a cluster": {cluster("h:1", "h:2"), cluster("h:2", "h:3"), true},
		"another cluster":          {cluster("h:1"), cluster("h:2"), false},
		"none":                     {node("h:1"), router.Group{}, false},
	} {
		if got := test.after.Continues(test.before); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
