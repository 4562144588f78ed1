//go:build unix

package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/router"
)

var everyOperation = []backendtest.Option{
	backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](), backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](),
	backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](),
	backendtest.Require[backend.Sealer](), backendtest.Routes(),
}

func TestConformanceOfMemories(t *testing.T) {
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		var groups []router.NodeGroup
		for i := range 3 {
			m, err := memory.New(memory.Config{Now: now})
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, router.NodeGroup{Name: fmt.Sprintf("g%d", i), Primary: m})
		}
		return open(t, groups, router.Config{})
	}, everyOperation...)
}

func TestConformanceOfServers(t *testing.T) {
	servers := startCluster(t, 3, 0)
	n := 0
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		n++
		return dial(t, servers.topology, router.Config{Backend: redisbackend.Config{
			Prefix: fmt.Sprintf("t%d:", n), Now: now, Timeout: 10 * time.Second, // every part begins with nothing stored
		}})
	}, everyOperation...)
}
