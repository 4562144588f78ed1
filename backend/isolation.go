package backend

import "sync/atomic"

// aloneAfterRefusal is how many takes under a policy go alone after one of them was refused that shared a call, and then by
// itself. Each refusal starts the count again, so that a policy which Redis refuses takes no other one along, not even once in a while.
const aloneAfterRefusal = 256

// isolation is how many more takes under a policy go alone.
type isolation struct{ left atomic.Int32 }

func (s *isolation) refused() { s.left.Store(aloneAfterRefusal) }

// apart reports whether a take under the policy has to go alone.
func (s *isolation) apart() bool { return s.left.Load() > 0 && s.left.Add(-1) >= 0 }

// solos has one isolation for a policy, by a hash of its name. Policies that share one are only slower.
type isolations [1024]isolation

func (all *isolations) of(name string) *isolation {
	hash := uint64(len(name))
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 0x100000001b3
	}
	return &all[hash*0x9e3779b97f4a7c15>>54]
}
