//go:build !race

package backend_test

const raced = false
