package throttler

import (
	"cmp"
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
	Key    string `json:"key"`    // see Throttler.KeyHash, unless it was asked for in clear
	Denied int64  `json:"denied"` // denials, which count half after each half-life
	Over   int64  `json:"over"`   // Denied may be too high by that much; it is never too low
}

// TopDenied are the keys that are denied most, the first of them first, at most n: the heavy hitters. The keys are hashed,
// as by KeyHash: they are personal data. Without StatsConfig.WatchedKeys there are none. What the failure policy or a deny list
// denies doesn't count: the former says nothing of the key, and the latter is known. Contention counts.
//
// They are found by Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in
// Data Streams"): with m keys watched a key with more than about 1/m of the denials is among them.
func (t *Throttler) TopDenied(n int) []DeniedKey {
	return t.top.list(n, t.KeyHash)
}

// TopDeniedInClear is TopDenied with the keys as they are. Of one with more than 256 bytes only the hash is known.
func (t *Throttler) TopDeniedInClear(n int) []DeniedKey {
	return t.top.list(n, func(key string) string { return key })
}

// KeyHash is what stands for a key in TopDenied: the first half of its HMAC-SHA256 with StatsConfig.HashKey, in hexadecimal.
func (t *Throttler) KeyHash(key string) string { return keyHash(t.hashKey, key) }

func keyHash(secret []byte, key string) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(key))
	return hex.EncodeToString(mac.Sum(nil)[:sha256.Size/2])
}

const (
	defaultHalfLife  = 10 * time.Minute
	leastWatchedKeys = 1000
	maxWatchedKeys   = 1 << 16
	topDeniedShards  = 8
	decaysInHalfLife = 8

	longestDenied = 256             // bytes; a longer key is known by its hash alone
	longDenied    = "\x00long key " // what such a hash begins with
)

// topDenied watches the keys that are denied most, in bounded memory.
type topDenied struct {
	seed    maphash.Seed
	hashKey []byte
	every   time.Duration // between decays
	shards  []deniedShard // by a hash of the key
}

// deniedShard is a Space-Saving sketch: when it is full, a key that it doesn't watch takes the place of the one that was
// denied least, and its count, by which it may then be too high. It decays all at once, which leaves the order as it is.
type deniedShard struct {
	mu      sync.Mutex
	most    int
	watched map[string]*deniedEntry
	heap    []*deniedEntry // the least first
	decayed time.Time
}

type deniedEntry struct {
	key         string
	at          int // in the heap
	count, over float64
}

// newTopDenied is nil if no key is watched.
func newTopDenied(cfg *StatsConfig, hashKey []byte) *topDenied {
	if cfg.WatchedKeys == 0 {
		return nil
	}
	every := cfg.HalfLife
	if every == 0 {
		every = defaultHalfLife
	}
	t := &topDenied{
		seed: maphash.MakeSeed(), hashKey: hashKey, every: max(every/decaysInHalfLife, 1),
		shards: make([]deniedShard, topDeniedShards),
	}
	most := (max(cfg.WatchedKeys, leastWatchedKeys) + topDeniedShards - 1) / topDeniedShards
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

func (t *topDenied) add(key string) {
	if len(key) > longestDenied || strings.HasPrefix(key, longDenied) { // or a client could pass a key off as a hash
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
		e = &deniedEntry{key: strings.Clone(key), at: len(s.heap)}
		s.heap = append(s.heap, e)
		s.watched[e.key] = e
	default:
		e = s.heap[0]
		delete(s.watched, e.key)
		e.key, e.over = strings.Clone(key), e.count
		s.watched[e.key] = e
	}
	e.count++
	s.upLocked(e.at) // one that is new may be the least
	s.downLocked(e.at)
}

// decayLocked lets all counts fade, and forgets those that have.
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
		kept = append(kept, e)
	}
	clear(s.heap[len(kept):])
	s.heap = kept
	for i := range s.heap {
		s.heap[i].at = i
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.downLocked(i)
	}
}

func (s *deniedShard) upLocked(i int) {
	for i > 0 && s.heap[i].count < s.heap[(i-1)/2].count {
		s.swapLocked(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (s *deniedShard) downLocked(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.heap); child++ {
			if s.heap[child].count < s.heap[least].count {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swapLocked(i, least)
		i = least
	}
}

func (s *deniedShard) swapLocked(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.heap[i].at, s.heap[j].at = i, j
}

// list returns the first n keys, as show would have them.
func (t *topDenied) list(n int, show func(key string) string) []DeniedKey {
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
