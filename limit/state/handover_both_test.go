package state_test

import (
	"errors"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Both movers at once, in pure form: a migration moves a key between an old backend and a new one, which consists of
// groups that a topology moves the key between. The processes do what dual.Dual and package router do.

const groups = 3

// site is all places of one key.
type site struct {
	policy *limit.Policy
	now    state.At
	old    state.State
	new    [groups]state.State
	owners []int // of the key, by epoch

	admitted, denied int
	met              map[string]int // what has happened, to see that it does
}

// caller is a process that takes from the key. Even versions of the migration have it on the old side, odd ones on the new.
type caller struct {
	*site
	epoch   int64
	version int64
	quiet   bool // it has seen no change of the migration, and names no version
	pause   func() bool
	work    func() (bool, bool)
	stop    func()
}

var errDies = errors.New("the process dies")

// start begins to take, again and again; each call of c.work is one atomic step.
func (c *caller) start() {
	if c.stop != nil {
		c.stop()
	}
	c.work, c.stop = iter.Pull(func(yield func(bool) bool) {
		c.pause = func() bool { return yield(true) }
		for c.take() == nil {
		}
	})
}

// at does something at a place in one step.
func (c *caller) at(place *state.State, do func(*state.State) error) error {
	if !c.pause() {
		return errDies
	}
	err := do(place)
	if moved, ok := errors.AsType[*state.MovedError](err); ok {
		c.met["refused by a "+moved.Mover.String()]++
	}
	return err
}

func (c *caller) take() error {
	version, quiet, step := c.version, c.quiet, state.Ask
	var floor *state.State
	for {
		move := migrating(version, step)
		if quiet {
			move = state.Move{}
		}
		err := c.side(version, move, floor, func(s *state.State, m state.Move, floor *state.State) error {
			if _, err := s.Arrive(c.policy, c.now, m, floor, true); err != nil {
				return err
			}
			if v := s.Take(c.policy, c.now, 1); v.Allowed {
				c.admitted++
			} else {
				c.denied++
			}
			return nil
		})
		if errors.Is(err, state.ErrFloorWanted) {
			var known state.State
			err = c.side(version+1, migrating(version, state.Ask), nil, func(s *state.State, m state.Move, _ *state.State) error {
				_, err := s.Seal(c.now, m)
				known = s.Clone()
				return err
			})
			if err == nil {
				known.Unfence(state.Migration) // or it would freeze the group that a topology brings the key to meanwhile
				step, floor = state.Adopt, &known
				continue
			}
		}
		if moved, ok := errors.AsType[*state.MovedError](err); ok && moved.Mover == state.Migration {
			c.met["went after the key"]++
			c.version = max(c.version, moved.Version)
			c.quiet = false
			version, quiet, step, floor = c.version, false, state.Ask, nil
			continue
		}
		return err
	}
}

type call func(*state.State, state.Move, *state.State) error

// side makes a call at the side of a version.
func (c *caller) side(version int64, move state.Move, floor *state.State, do call) error {
	if version%2 == 0 {
		return c.at(&c.old, func(s *state.State) error { return do(s, move, floor) })
	}
	for {
		epoch := c.epoch
		err := c.route(epoch, move, floor, do)
		moved, ok := errors.AsType[*state.MovedError](err)
		if !ok || moved.Mover != state.Topology {
			return err
		}
		if moved.Version <= epoch {
			panic("the key has left its owner for an earlier one")
		}
		c.epoch = max(c.epoch, moved.Version)
	}
}

// route makes a call at the group that owns the key under an epoch, and brings the key there before.
func (c *caller) route(epoch int64, move state.Move, floor *state.State, do call) error {
	owner := c.owners[epoch]
	var origins []int
	for e := epoch - 1; e >= 0; e-- {
		if o := c.owners[e]; o != owner {
			origins = append(origins, o)
		}
	}
	here := &c.new[owner]
	ours := func(s *state.State) error { return do(s, move, floor) }
	if len(origins) == 0 {
		return c.at(here, ours)
	}
	if move == (state.Move{}) { // the request itself adopts
		err := c.at(here, func(s *state.State) error { return do(s, reshaping(epoch, state.Ask), floor) })
		if !errors.Is(err, state.ErrFloorWanted) {
			return err
		}
		known, err := c.fetch(epoch, origins, floor)
		if err != nil {
			return err
		}
		return c.at(here, func(s *state.State) error {
			c.note(s, known)
			return do(s, reshaping(epoch, state.Adopt), known)
		})
	}
	seed := func(step state.Step, known *state.State) error { // what is the migration's goes where the key is
		return c.at(here, func(s *state.State) error {
			if known != nil {
				c.note(s, known)
			}
			_, err := s.Arrive(c.policy, c.now, reshaping(epoch, step), known, false)
			return err
		})
	}
	err := seed(state.Ask, nil)
	if errors.Is(err, state.ErrFloorWanted) {
		var known *state.State
		if known, err = c.fetch(epoch, origins, floor); err == nil {
			err = seed(state.Adopt, known)
		}
	}
	if err != nil {
		return err
	}
	return c.at(here, ours)
}

// fetch seals the groups that the key may come from.
func (c *caller) fetch(epoch int64, origins []int, floor *state.State) (*state.State, error) {
	var known state.State
	if floor != nil {
		known = floor.Clone()
	}
	for _, o := range origins {
		err := c.at(&c.new[o], func(s *state.State) error {
			_, err := s.Seal(c.now, reshaping(epoch, state.Ask))
			if err == nil {
				known = state.Merge(known, *s, c.now)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return &known, nil
}

// note counts what an adoption under a topology brings along.
func (c *caller) note(s, floor *state.State) {
	frozen := func(s *state.State) bool {
		adopted, sealed := s.Fence(state.Migration, c.now)
		return sealed > adopted
	}
	switch adopted, sealed := floor.Fence(state.Migration, c.now); {
	case frozen(floor) && frozen(s):
		c.met["a frozen key went to a frozen group"]++
	case frozen(floor):
		c.met["a frozen key went along"]++
	case adopted+sealed > 0 && frozen(s):
		c.met["a key thawed a group"]++
	case adopted+sealed > 0:
		c.met["a key went along"]++
	}
}

// TestHandOverOfTwoMoversIsExact is promises P9 and P10 at once, in pure form: processes that see changes of the
// migration and of the topology at different times, and die between two steps, never admit more than Max in a window, and
// lose nothing of it.
func TestHandOverOfTwoMoversIsExact(t *testing.T) {
	const most = 12
	for name, l := range map[string]limit.Limit{
		"fixed": limit.Fixed(most, time.Minute), "sliding": limit.Sliding(most, time.Minute, time.Second),
		"bucket": limit.TokenBucket(1, 9*time.Hour, most),
	} {
		t.Run(name, func(t *testing.T) {
			met := make(map[string]int)
			for seed := range uint64(4000) {
				s := &site{policy: policyOf(l), now: at(0), met: met}
				r := rand.New(rand.NewPCG(seed, 2))
				for range 40 {
					s.owners = append(s.owners, r.IntN(2+r.IntN(groups-1)))
				}
				callers := make([]*caller, 2+r.IntN(4))
				newest, quiet := 2+r.Int64N(2), r.IntN(4) == 0
				epoch := r.Int64N(2)
				for i := range callers {
					callers[i] = &caller{site: s, version: newest, quiet: quiet, epoch: r.Int64N(epoch + 1)}
					if !quiet {
						callers[i].version = 2 + r.Int64N(2)
					}
					callers[i].start()
				}
				for turns := 0; s.denied < 3; turns++ {
					if turns == 10_000 {
						t.Fatalf("seed %d: no progress: %s | %s %s %s", seed, s.old.String(), s.new[0].String(), s.new[1].String(), s.new[2].String())
					}
					s.now.Micros += r.Int64N(100)
					c := callers[r.IntN(len(callers))]
					if turns < 400 {
						switch r.IntN(24) {
						case 0, 1: // it dies, and begins again with the latest that it knew of
							c.start()
						case 2, 3: // it sees a newer version
							newest += r.Int64N(2)
							if v := newest - r.Int64N(2); v > c.version {
								c.version, c.quiet = v, false
							}
						case 4, 5: // or a newer topology
							epoch = min(epoch+r.Int64N(2), int64(len(s.owners)-1))
							c.epoch = max(c.epoch, epoch-r.Int64N(2))
						}
					}
					c.work()
				}
				for _, c := range callers {
					c.stop()
				}
				if s.admitted != most {
					t.Fatalf("seed %d: admitted %d of %d: %s | %s %s %s", seed, s.admitted, most,
						s.old.String(), s.new[0].String(), s.new[1].String(), s.new[2].String())
				}
			}
			for _, what := range []string{
				"refused by a migration", "refused by a topology", "went after the key",
				"a key went along", "a frozen key went along", "a frozen key went to a frozen group", "a key thawed a group",
			} {
				if met[what] == 0 {
					t.Errorf("never happened: %s", what)
				}
			}
			t.Log(met)
		})
	}
}
