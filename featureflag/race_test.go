//go:build race

package featureflag_test

// scale divides the numbers of keys under the race detector, which sees nothing more in a million than in the tenth.
const scale = 10
