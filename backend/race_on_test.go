//go:build race

package backend_test

// raced scales tests down under the race detector.
const raced = true
