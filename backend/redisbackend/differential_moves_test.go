//go:build unix

package redisbackend_test

import (
	"github.com/sluice-go/sluice/limit/state"
)

// encounters are the cases of two movers at one key that the histories must come upon: few of them are met by chance, and
// where one is not met the scripts could do anything.
var encounters = []string{
	"take: none of the movers refuses", "take: only the other mover refuses", "take: only its own mover refuses", "take: both movers refuse",
	"take: no mover, frozen by a migration", "take: no mover, frozen by a topology",
	"take: a stamp comes along", "take: a stamp comes along and joins another", "take: a stamp comes along and freezes",
	"take: a stamp stays behind", "take: a stamp that is over stays behind", "take: a stamp comes to one that is over",
	"seed: none of the movers refuses", "seed: only the other mover refuses", "seed: only its own mover refuses", "seed: both movers refuse",
	"seed: a stamp comes along", "seed: a stamp comes along and joins another", "seed: a stamp comes along and freezes",
	"seed: a stamp stays behind", "seed: a stamp that is over stays behind", "seed: a stamp comes to one that is over",
	"seed: brought to a frozen place",
	"give back: none of the movers refuses", "give back: only the other mover refuses", "give back: only its own mover refuses",
	"give back: both movers refuse", "give back: no mover, frozen by a migration", "give back: no mover, frozen by a topology",
	"seal: by a migration where the key has left", "seal: by a migration where it is", "seal: by a topology where it is frozen",
}

// meet notes what a call is about to meet in the model, by the words of the protocol rather than by those of the code.
func (c *contest) meet(op string, floor *state.State) {
	note := func(what string) { c.met[op+": "+what]++ }
	frozen := func(s *state.State, mover state.Mover) bool {
		adopted, sealed := s.Fence(mover, c.at)
		return sealed > adopted
	}
	ours, theirs := c.move.Mover, state.Topology-c.move.Mover
	adopted, sealed := c.model.Fence(ours, c.at)
	own, other := frozen(&c.model, ours) && c.move.Version <= sealed, frozen(&c.model, theirs)
	switch {
	case op == "seal" && ours == state.Migration && other:
		note("by a migration where the key has left")
		return
	case op == "seal" && ours == state.Migration:
		note("by a migration where it is")
		return
	case op == "seal":
		if other {
			note("by a topology where it is frozen")
		}
		return
	case c.move.Version == 0:
		for _, mover := range []state.Mover{state.Migration, state.Topology} {
			if frozen(&c.model, mover) {
				note("no mover, frozen by a " + mover.String())
			}
		}
		return
	case own && other:
		note("both movers refuse")
	case own:
		note("only its own mover refuses")
	case other && op == "seed" && ours == state.Topology:
		note("brought to a frozen place")
	case other:
		note("only the other mover refuses")
	default:
		note("none of the movers refuses")
	}
	if own || other && (op != "seed" || ours != state.Topology) || floor == nil || c.move.Step != state.Adopt || c.move.Version <= adopted {
		return
	}
	// The request adopts.
	now := func(s *state.State) bool { a, b := s.Fence(state.Migration, c.at); return a+b > 0 }
	ever := func(s *state.State) bool { a, b := s.Fence(state.Migration, state.At{}); return a+b > 0 }
	migrates := ours == state.Migration
	if a, b := floor.Fence(ours, c.at); a+b > 0 || migrates && ever(floor) {
		note("a stamp stays behind")
	}
	switch {
	case migrates:
	case ever(floor) && !now(floor):
		note("a stamp that is over stays behind")
	case now(floor):
		note("a stamp comes along")
		switch joined := state.Merge(c.model, *floor, c.at); {
		case frozen(&joined, state.Migration):
			note("a stamp comes along and freezes")
		case now(&c.model):
			note("a stamp comes along and joins another")
		case ever(&c.model):
			note("a stamp comes to one that is over")
		}
	}
}
