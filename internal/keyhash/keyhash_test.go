package keyhash_test

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/internal/keyhash"
)

// The values of the xxHash specification. One that changes moves every key of every ring, flag and staggered window.
func TestSumNeverChanges(t *testing.T) {
	for _, tt := range []struct {
		key  string
		want uint64
	}{
		{"", 0xef46db3751d8e999},
		{"a", 0xd24ec4f1a98c6e5b},
		{"as", 0x1c330fb2d66be179},
		{"asd", 0x631c37ce72a97393},
		{"asdf", 0x415872f599cea71e},
		{"Call me Ishmael. Some years ago--never mind how long precisely-", 0x02a2e85470d6fd96},
	} {
		if got := keyhash.Sum(tt.key); got != tt.want {
			t.Errorf("Sum(%q) = %#x, want %#x", tt.key, got, tt.want)
		}
	}
}

// Mix(0, 0) and what follows it are the first outputs of SplitMix64 from state 0, as published with it.
func TestMixNeverChanges(t *testing.T) {
	const gamma = 0x9e3779b97f4a7c15
	for _, tt := range []struct{ h, seed, want uint64 }{
		{0, 0, 0xe220a8397b1dcdaf},
		{gamma, 0, 0x6e789e6aa1b965f4},
		{0, gamma, 0x6e789e6aa1b965f4},
		{1, 2, 0x1d0b14e4db018fed},
		{0xef46db3751d8e999, 7, 0xfe142f73f0c816f7},
	} {
		if got := keyhash.Mix(tt.h, tt.seed); got != tt.want {
			t.Errorf("Mix(%#x, %#x) = %#x, want %#x", tt.h, tt.seed, got, tt.want)
		}
	}
}

func TestMixNeverCollides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, h := rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "h")
		if got := unmix(keyhash.Mix(h, seed), seed); got != h {
			t.Fatalf("the inverse of Mix(%#x, %#x) gives %#x", h, seed, got)
		}
	})
}

// unmix is the inverse of Mix: if there is one, Mix is a bijection.
func unmix(h, seed uint64) uint64 {
	h = (h ^ h>>31 ^ h>>62) * 0x319642b2d24d8ec3
	h = (h ^ h>>27 ^ h>>54) * 0x96de1b173f119089
	h = h ^ h>>30 ^ h>>60
	return h - seed - 0x9e3779b97f4a7c15
}

// A bit that changes in the hash or in the seed changes half of the result, and each bit of it half of the time.
func TestMixSpreads(t *testing.T) {
	const rounds = 4096
	for in := range 64 {
		var flips [2][64]int
		var total [2]int
		for i := range uint64(rounds) {
			h, seed := keyhash.Sum(string(rune(i))), i // a hash as callers have it, a seed as people choose it
			for k, changed := range []uint64{keyhash.Mix(h^1<<in, seed), keyhash.Mix(h, seed^1<<in)} {
				diff := keyhash.Mix(h, seed) ^ changed
				total[k] += bits.OnesCount64(diff)
				for ; diff != 0; diff &= diff - 1 {
					flips[k][bits.TrailingZeros64(diff)]++
				}
			}
		}
		for k, what := range []string{"hash", "seed"} {
			if mean := float64(total[k]) / rounds; mean < 31 || mean > 33 {
				t.Errorf("bit %d of the %s changes %.1f bits of the result, want about 32", in, what, mean)
			}
			for out, n := range flips[k] {
				if share := float64(n) / rounds; share < 0.4 || share > 0.6 {
					t.Errorf("bit %d of the %s changes bit %d of the result %.2f of the time", in, what, out, share)
				}
			}
		}
	}
}
