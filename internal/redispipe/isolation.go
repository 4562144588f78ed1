package redispipe

import "sync/atomic"

// unsharedAfterRefusal is how many takes under a policy are sent in script calls of their own after one was refused that had
// been in a shared call and then in one of its own. Each refusal starts the count again, so that a policy which Redis
// refuses never takes others along.
const unsharedAfterRefusal = 256

// isolation counts how many more takes under a policy are sent unshared.
type isolation struct{ left atomic.Int32 }

func (s *isolation) refused() { s.left.Store(unsharedAfterRefusal) }

// unshared reports whether a take under the policy is sent unshared.
func (s *isolation) unshared() bool { return s.left.Load() > 0 && s.left.Add(-1) >= 0 }

// isolations has one isolation for each policy, by a hash of its name. Policies with the same hash are only slower.
type isolations [1024]isolation

func (all *isolations) of(name string) *isolation {
	hash := uint64(len(name))
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 0x100000001b3
	}
	return &all[hash*0x9e3779b97f4a7c15>>54]
}
