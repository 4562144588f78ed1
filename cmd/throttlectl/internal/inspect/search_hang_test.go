//go:build unix

package inspect

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

// A search that a server holds up ends, and says so.
func TestSearchOfAServerThatHangs(t *testing.T) {
	t.Parallel()
	c := &cluster.Cluster{Prefix: "sl:", Timeout: 50 * time.Millisecond, Single: []redis.Options{{Addr: fixture.Hanging(t), ContextTimeoutEnabled: true}}}
	k := &keyCounts{cluster: c}
	found := k.search(t.Context(), "alice")
	err := found.wrap(errors.New("nothing"))
	if !strings.Contains(err.Error(), "nothing, and the search for it is incomplete: 127.0.0.1") || !strings.Contains(err.Error(), "not searched to its end within --timeout = 50ms") {
		t.Error(err)
	}
}
