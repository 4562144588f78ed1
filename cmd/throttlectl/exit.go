package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// The exit codes are documented in rootHelp.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitFound   = 3
)

// failure is an error of a command that was understood.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// usageError is an error that a command finds in what it was told to do.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// usage marks an error as the caller's. Nil stays nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// markFailures has all errors of the commands' own code count as failures, except what usage made. What cobra refuses
// before is usage: it has no type to be told by.
func markFailures(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if _, ok := errors.AsType[usageError](err); err == nil || ok {
				return err
			}
			return failure{err}
		}
	}
	for _, c := range cmd.Commands() {
		markFailures(c)
	}
}

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if _, ok := errors.AsType[foundError](err); ok {
		return exitFound
	}
	if _, ok := errors.AsType[failure](err); ok {
		return exitFailure
	}
	return exitUsage
}
