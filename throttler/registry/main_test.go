package registry_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newRegistry(t testing.TB, document string) *registry.Registry {
	t.Helper()
	r, err := registry.New([]byte(document), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// policyOf is the policy that a registry gives a key.
func policyOf(r *registry.Registry, key string) *limit.Policy {
	p, err := r.View().Policy(context.Background(), key)
	if err != nil {
		panic(err)
	}
	return p
}

// tiers is a document of some policies, and what else it says.
func tiers(rest string) string {
	return `{"policies": {"free": ["5/1h"], "pro": ["50/1h"], "max": ["500/1h", "daily=1000/24h"]}, "default": "free"` + rest + `}`
}

// fields are the fields of every *limit.Error in a tree of errors.
func fields(err error) (all []string) {
	for _, e := range fielderrors.All(err) {
		all = append(all, e.Field)
	}
	return all
}
