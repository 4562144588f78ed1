package registry

import (
	"context"
	"maps"
	"slices"

	"github.com/sluice-go/sluice/internal/prefixtable"
	"github.com/sluice-go/sluice/limit"
)

// view is a document in the form in which requests use it. It never changes.
type view struct {
	info        Info
	byName      map[string]*limit.Policy
	fallback    *limit.Policy
	keys        prefixtable.Table[*limit.Policy]
	allow, deny prefixtable.Set
	shadows     map[string]*limit.Policy // by the name of the enforced policy
}

func (v *view) Default() *limit.Policy { return v.fallback }

func (v *view) Policy(_ context.Context, key string) (*limit.Policy, error) {
	if p, ok := v.keys.Find(key); ok {
		return p, nil
	}
	return v.fallback, nil
}

func (v *view) Listed(key string) (allow, deny bool) { return v.allow.Has(key), v.deny.Has(key) }

// Shadow goes by the name, as counts do: PolicyFor may return a policy of its own.
func (v *view) Shadow(p *limit.Policy) *limit.Policy { return v.shadows[p.Name] }

func (v *view) enforced() []*limit.Policy {
	rest := maps.Clone(v.byName)
	for _, p := range v.shadows {
		delete(rest, p.Name)
	}
	rest[v.fallback.Name] = v.fallback
	for p := range v.keys.All() {
		rest[p.Name] = p
	}
	return sorted(rest)
}

func sorted(byName map[string]*limit.Policy) []*limit.Policy {
	var all []*limit.Policy
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}
