package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Error is one problem of a file.
type Error struct {
	File    string
	Line    int // 0 if the problem is the file's as a whole
	Problem string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem)
}

// problems collects the errors of all files.
type problems struct{ all []*Error }

func (p *problems) add(file string, line int, format string, args ...any) {
	p.all = append(p.all, &Error{File: file, Line: line, Problem: fmt.Sprintf(format, args...)})
}

// err joins the problems by file and line; nil if there are none.
func (p *problems) err() error {
	slices.SortStableFunc(p.all, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	joined := make([]error, len(p.all))
	for i, e := range p.all {
		joined[i] = e
	}
	return errors.Join(joined...)
}
