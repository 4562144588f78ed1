package router_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// TestWatchFileTriesAgain: a file whose nodes couldn't be made is put in force once they can be, as it is.
func TestWatchFileTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant()
		var broken atomic.Bool
		var events log
		r, err := router.Open(topo(1, 1), router.Config{OnEvent: events.add, Node: func(address string) (backend.Backend, error) {
			if broken.Load() {
				return nil, errors.New("no credentials yet")
			}
			return p.node(address)
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		path := filepath.Join(t.TempDir(), "groups.json")
		if err := os.WriteFile(path, file(1, 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.WatchFile(path); err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		if err := os.WriteFile(path, file(2, 2), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := events.kinds("", ""); len(got) != 1 || got[0] != router.TopologyRejected {
			t.Errorf("events %v, want one that it was rejected", events.all())
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		if got := r.Owner("k"); got != "g2" {
			t.Errorf("the owner is %s", got)
		}
	})
}
