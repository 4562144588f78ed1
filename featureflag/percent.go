package featureflag

import "github.com/sluice-go/sluice/internal/keyhash"

// Keys fall on 2^53 points, all of which a float64 holds exactly. With 100,000 buckets instead, a percentage would have
// to be rounded or rejected; here any two percentages have thresholds in the same order, and that is all of the proof
// that a raise only adds keys. At 100 the threshold is above every point.
const pointBits = 53

// seed makes flags with different names choose different keys, and none of them the keys of a ring's member.
func seed(name string) uint64 { return keyhash.Sum(name) }

// point places a key. It must never change: every key would fall anew.
func point(key string, seed uint64) uint64 {
	return keyhash.Mix(keyhash.Sum(key), seed) >> (64 - pointBits)
}

// threshold is the first point that is not enabled.
func threshold(percent float64) uint64 {
	return uint64(percent * (1 << pointBits) / 100)
}

// checkPercent rejects NaN, too: every comparison with it is false.
func checkPercent(field string, percent float64) error {
	if percent >= 0 && percent <= 100 {
		return nil
	}
	return invalid(field, percent, "must be 0 to 100")
}
