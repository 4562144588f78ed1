package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// The exit codes are documented in rootHelp.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
	ExitFound   = 3
)

// failure is an error of a command that was understood.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// UsageError is an error that a command finds in what it was told to do.
type UsageError struct{ error }

func (u UsageError) Unwrap() error { return u.error }

// Usage marks an error as the caller's. Nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// MarkFailures has all errors of the commands' own code count as failures, except what usage made. What cobra refuses
// before is usage: it has no type to be told by.
func MarkFailures(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if _, ok := errors.AsType[UsageError](err); err == nil || ok {
				return err
			}
			return failure{err}
		}
	}
	for _, c := range cmd.Commands() {
		MarkFailures(c)
	}
}

func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if _, ok := errors.AsType[foundError](err); ok {
		return ExitFound
	}
	if _, ok := errors.AsType[failure](err); ok {
		return ExitFailure
	}
	return ExitUsage
}

// Found ends a command that has done its work, and found what should not be.
func Found(text string) error { return foundError{text} }

type foundError struct{ Text string }

func (e foundError) Error() string { return e.Text }
