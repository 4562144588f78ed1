//go:build race

package ring_test

import "flag"

const raceEnabled = true

// Building a ring takes ten times as long under the race detector, and it draws no other rings: fewer do.
// -rapid.checks on the command line still wins.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
