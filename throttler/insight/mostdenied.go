package insight

import (
	"cmp"
	"container/heap"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// DeniedKey is one of the keys that are denied most.
type DeniedKey struct {
	Key    string `json:"key"`    // hashed by Recorder.KeyHash, unless asked for in clear
	Denied int64  `json:"denied"` // denials, which count half after each half-life
	Over   int64  `json:"over"`   // Denied may be too high by that much; it is never too low
}

func keyHash(secret []byte, key string) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(key))
	return hex.EncodeToString(mac.Sum(nil)[:sha256.Size/2])
}

const (
	defaultHalfLife  = 10 * time.Minute
	leastWatchedKeys = 1000
	maxWatchedKeys   = 1 << 16
	mostDeniedShards = 8
	decaysInHalfLife = 8

	longestDenied = 256             // bytes; of a longer key only the hash is kept
	longDenied    = "\x00long key " // prefix of such a hash
)

// mostDenied watches the keys that are denied most, in bounded memory.
type mostDenied struct {
	seed    maphash.Seed
	hashKey []byte
	every   time.Duration // between decays
	shards  []deniedShard // by a hash of the key
}

// deniedShard is a Space-Saving sketch: when it is full, a new key replaces the key that was denied least and starts with its
// count, which may then be too high by that. All counts decay at once, which keeps their order.
type deniedShard struct {
	mu      sync.Mutex
	most    int
	watched map[string]*deniedEntry
	heap    deniedHeap
	decayed time.Time
}

type deniedEntry struct {
	key         string
	at          int // in the heap
	count, over float64
}

// newMostDenied is nil if no key is watched.
func newMostDenied(cfg *Config, hashKey []byte) *mostDenied {
	if cfg.WatchedKeys == 0 {
		return nil
	}
	every := cfg.HalfLife
	if every == 0 {
		every = defaultHalfLife
	}
	t := &mostDenied{
		seed: maphash.MakeSeed(), hashKey: hashKey, every: max(every/decaysInHalfLife, 1),
		shards: make([]deniedShard, mostDeniedShards),
	}
	most := (max(cfg.WatchedKeys, leastWatchedKeys) + mostDeniedShards - 1) / mostDeniedShards
	now := time.Now()
	for i := range t.shards {
		t.shards[i].most = most
		t.shards[i].watched, t.shards[i].decayed = map[string]*deniedEntry{}, now
	}
	return t
}

// newHashKey is the secret for hashes of keys.
func newHashKey(given []byte) []byte {
	if len(given) > 0 {
		return slices.Clone(given)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // doesn't fail
	return secret
}

func (t *mostDenied) add(key string) {
	if len(key) > longestDenied || strings.HasPrefix(key, longDenied) { // or a client could disguise a key as a hash
		key = longDenied + keyHash(t.hashKey, key)
	}
	s := &t.shards[maphash.String(t.seed, key)%uint64(len(t.shards))]
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decayLocked(now, t.every)
	e, ok := s.watched[key]
	switch {
	case ok:
	case len(s.heap) < s.most:
		e = &deniedEntry{key: strings.Clone(key)}
		heap.Push(&s.heap, e)
		s.watched[e.key] = e
	default:
		e = s.heap[0]
		delete(s.watched, e.key)
		e.key, e.over = strings.Clone(key), e.count
		s.watched[e.key] = e
	}
	e.count++
	heap.Fix(&s.heap, e.at)
}

// decayLocked decays all counts, and removes keys whose count has faded.
func (s *deniedShard) decayLocked(now time.Time, every time.Duration) {
	times := now.Sub(s.decayed) / every
	if times <= 0 {
		return
	}
	s.decayed = s.decayed.Add(times * every)
	left := math.Exp2(-float64(times) / decaysInHalfLife)
	kept := s.heap[:0]
	for _, e := range s.heap {
		e.count *= left
		e.over *= left
		if e.count < 0.5 {
			delete(s.watched, e.key)
			continue
		}
		e.at = len(kept)
		kept = append(kept, e)
	}
	clear(s.heap[len(kept):])
	s.heap = kept
	heap.Init(&s.heap)
}

// deniedHeap is a [heap.Interface], least denied first.
type deniedHeap []*deniedEntry

func (h deniedHeap) Len() int           { return len(h) }
func (h deniedHeap) Less(i, j int) bool { return h[i].count < h[j].count }
func (h deniedHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *deniedHeap) Push(x any) {
	e := x.(*deniedEntry)
	e.at = len(*h)
	*h = append(*h, e)
}

func (h *deniedHeap) Pop() any { panic("insight: entries are replaced, not popped") }

// list returns the first n keys, converted by show.
func (t *mostDenied) list(n int, show func(key string) string) []DeniedKey {
	if t == nil || n <= 0 {
		return nil
	}
	var all []DeniedKey
	now := time.Now()
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.decayLocked(now, t.every)
		for _, e := range s.heap {
			all = append(all, DeniedKey{Key: e.key, Denied: int64(math.Round(e.count)), Over: int64(math.Ceil(e.over))})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), strings.Compare(a.Key, b.Key))
	})
	all = all[:min(n, len(all))]
	for i := range all {
		hash, long := strings.CutPrefix(all[i].Key, longDenied)
		if all[i].Key = hash; !long {
			all[i].Key = show(all[i].Key)
		}
	}
	return all
}
