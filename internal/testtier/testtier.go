// Package testtier sizes tests that could go on for ever: random histories, seeds, mutants. By default they are a sample
// that finishes in seconds, so that `go test ./...` and `make test` hold every promise without a long wait. With
// SLUICE_TEST_LONG=1 in the environment, which `make test-long` and CI set, they are all.
package testtier

import (
	"os"
	"strconv"
)

// Long reports whether the long tier runs. What is neither 0, false nor empty asks for it.
func Long() bool {
	value := os.Getenv("SLUICE_TEST_LONG")
	asked, err := strconv.ParseBool(value)
	return asked || err != nil && value != ""
}

// Size returns few, or many in the long tier.
func Size(few, many int) int {
	if Long() {
		return many
	}
	return few
}
