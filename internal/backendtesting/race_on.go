//go:build race

package backendtesting

// Raced is whether the race detector runs, which allocates.
const Raced = true
