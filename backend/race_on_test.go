//go:build race

package backend_test

// raced is whether the race detector runs, which allocates.
const raced = true
