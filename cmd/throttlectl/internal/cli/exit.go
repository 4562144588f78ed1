package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// The exit codes, which throttlectl --help documents.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
	ExitFound   = 3
)

// failure is an error of a command whose arguments are valid.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// UsageError is an error in the command line.
type UsageError struct{ error }

func (u UsageError) Unwrap() error { return u.error }

// Usage makes a UsageError; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// MarkFailures makes failures of all errors that RunE of cmd and its subcommands return, except those that Usage made. Errors
// of cobra itself have no type: whatever isn't marked is a usage error.
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

// ExitCode is the exit code of a program that ends with err.
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

// Found is the error of a command that has done its work and found what should not be.
func Found(text string) error { return foundError{text} }

type foundError struct{ Text string }

func (e foundError) Error() string { return e.Text }
