// Package keyhash is the one hash that every process must agree on: the ring places keys with it, staggered
// windows take their phase from it and percentage flags their bucket. It is xxhash64, unseeded, so its values
// are the same in every process and every release; changing it would move every key.
package keyhash

import "github.com/cespare/xxhash/v2"

// Sum returns the hash of key.
func Sum(key string) uint64 { return xxhash.Sum64String(key) }

// Mix derives an independent, evenly spread hash from h and a seed. It is the finalizer of SplitMix64
// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): a bijection for every seed, so
// it never adds a collision.
func Mix(h, seed uint64) uint64 {
	h += seed + 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
