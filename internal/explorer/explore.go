package explorer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Report says how far a search went.
type Report struct {
	States    int      // different states, by a 64-bit hash
	Steps     int      // steps taken between them
	Depth     int      // the longest story
	Complete  bool     // no story was cut off at the depth given
	Violation string   // the first promise that did not hold; empty if all did
	Story     []string // the steps to it
}

func (r Report) String() string {
	s := fmt.Sprintf("%d states, %d steps, depth %d", r.States, r.Steps, r.Depth)
	if r.Complete {
		s += ", complete"
	}
	if r.Violation != "" {
		s += "\n" + r.Violation + " after\n\t" + strings.Join(r.Story, "\n\t")
	}
	return s
}

// A step is one thing that can happen next in a world.
type step struct {
	name string
	do   func() error // the error is a promise that does not hold
}

// A world is one play of a protocol. It must be deterministic: the search goes back by playing the same steps in a new one.
type world interface {
	steps() []step       // what can happen next, always in the same order; none at the end
	state([]byte) []byte // appends all that what follows depends on
	close()
}

// explore takes every sequence of at most depth steps, except those from states that it has met with as many steps left.
func explore(depth int, begin func() world) Report {
	s := search{begin: begin, depth: depth, met: make(map[uint64]int), report: Report{Complete: true}}
	for s.play() {
	}
	s.report.States = len(s.met)
	return s.report
}

// shortest is explore with growing depths, so that what it finds is as short as can be.
func shortest(depth int, begin func() world) Report {
	for d := 1; ; d++ {
		if r := explore(d, begin); r.Violation != "" || r.Complete || d == depth {
			return r
		}
	}
}

type search struct {
	begin  func() world
	depth  int
	path   []choice
	met    map[uint64]int // how many steps were left at most when the state was met
	report Report
	buf    []byte
}

// choice is a step taken and how many there were.
type choice struct{ taken, of int }

// play follows the path and then the first step each time, up to an end. It leaves the path that is to be played next, and
// reports whether there is one.
func (s *search) play() bool {
	w := s.begin()
	defer w.close()
	var story []string
	for i := 0; ; i++ {
		if i == len(s.path) && s.known(w, i) {
			return s.back()
		}
		steps := w.steps()
		if i == len(s.path) {
			if len(steps) == 0 {
				return s.back()
			}
			if i == s.depth {
				s.report.Complete = false
				return s.back()
			}
			s.path = append(s.path, choice{of: len(steps)})
		}
		next := steps[s.path[i].taken]
		story = append(story, next.name)
		if i == len(s.path)-1 {
			s.report.Steps++
			s.report.Depth = max(s.report.Depth, len(s.path))
		}
		if err := next.do(); err != nil {
			s.report.Violation, s.report.Story = err.Error(), slices.Clone(story)
			return false
		}
	}
}

// known reports whether the state after i steps was met before with as many steps left.
func (s *search) known(w world, i int) bool {
	s.buf = w.state(s.buf[:0])
	hash, left := xxhash.Sum64(s.buf), s.depth-i
	if before, met := s.met[hash]; met && before >= left {
		return true
	}
	s.met[hash] = left
	return false
}

// back changes the last choice that has another step left.
func (s *search) back() bool {
	for len(s.path) > 0 {
		last := &s.path[len(s.path)-1]
		if last.taken++; last.taken < last.of {
			return true
		}
		s.path = s.path[:len(s.path)-1]
	}
	return false
}
