//go:build !race

package featureflag_test

const scale = 1
