package featureflag

import (
	"fmt"
	"time"
)

// State is what a flag answers, and why, at one moment. It never changes, so that a caller who needs several answers
// from the same moment can keep it. The zero State enables nothing.
type State struct {
	Name       string
	Percent    float64   // what applies: 0 if killed, Config.Default if stale, and so on
	Version    uint64    // see the package's documentation
	Generation uint64    // the source's own version; 0 before the first load
	Reason     Reason    // why Percent is what it is
	Override   Override  // what Flag.Override set
	Stale      bool      // no load has succeeded for Config.StaleAfter
	Loaded     time.Time // when the last successful load began; zero before it
	Err        error     // of the latest load; nil if it succeeded

	seed, threshold uint64
}

// Enabled is [Flag.Enabled] as of s.
func (s *State) Enabled(key string) bool { return point(key, s.seed) < s.threshold }

// Reason is why a percentage applies, in the words of OpenTelemetry's feature_flag.result.reason. In order of
// precedence:
type Reason string

const (
	ReasonKilled   Reason = "disabled" // killed in the source: 0 %
	ReasonOverride Reason = "static"   // Flag.Override
	ReasonDefault  Reason = "default"  // nothing was loaded so far: Config.Default
	ReasonStale    Reason = "stale"    // nothing was loaded for Config.StaleAfter: Config.Default
	ReasonSource   Reason = "split"    // the source's percentage
)

// Override is what one process forces upon a flag.
type Override uint8

const (
	Clear Override = iota // nothing: the source decides
	On                    // for every key, unless the source killed the flag
	Off                   // for no key
)

func (o Override) String() string {
	switch o {
	case On:
		return "on"
	case Off:
		return "off"
	}
	return "clear"
}

// A version is generation x 2^14 + local changes, below 2^52, so that dual.Dual can put a bit behind it. Generations
// are times in hundredths of a second where this package writes them, which fit until the year 2057.
const (
	localBits     = 14
	maxLocal      = 1<<localBits - 1
	maxGeneration = 1<<38 - 1
)

// record is all that a flag knows. It decides which of the source's values are taken, and numbers what follows from
// them. It does no I/O and reads no clock.
type record struct {
	name     string
	fallback float64 // Config.Default

	value    Value // the last one taken; version 0 before the first
	killed   bool  // the source says so without a larger version
	override Override
	stale    bool
	loaded   time.Time
	err      error
}

// accept takes a value that the source holds, or says why not.
func (r *record) accept(v Value) error {
	if err := checkPercent("percent", v.Percent); err != nil {
		return err
	}
	v.Percent += 0 // -0 becomes 0
	if v.Version == 0 {
		v.Version = r.value.Version
		if r.value.Version == 0 || v != r.value {
			v.Version++
		}
	}
	switch {
	case v.Version > maxGeneration:
		return invalid("version", v.Version, "must be 1 to %d", uint64(maxGeneration))
	case v.Version > r.value.Version:
		r.value, r.killed = v, false
	case v == r.value:
		r.killed = false
	default:
		// A kill by hand, in a hurry, must not fail because of its version.
		r.killed = r.killed || v.Killed
		return fmt.Errorf("%w: percent %v, killed %t, version %d after percent %v, killed %t, version %d", ErrVersion,
			v.Percent, v.Killed, v.Version, r.value.Percent, r.value.Killed, r.value.Version)
	}
	return nil
}

// next is the state that follows on s.
func (r *record) next(s *State) *State {
	n := &State{
		Name: r.name, Version: s.Version, Generation: r.value.Version,
		Override: r.override, Stale: r.stale, Loaded: r.loaded, Err: r.err,
		seed: seed(r.name),
	}
	n.Percent, n.Reason = r.effective()
	n.threshold = threshold(n.Percent)
	switch {
	case n.Generation > s.Generation:
		n.Version = n.Generation << localBits
		if n.Percent != r.value.effective() {
			n.Version++ // others have this generation without the departure
		}
	case n.Percent != s.Percent && s.Version&maxLocal < maxLocal:
		n.Version++
	}
	return n
}

func (r *record) effective() (float64, Reason) {
	switch {
	case r.value.Killed || r.killed:
		return 0, ReasonKilled
	case r.override == On:
		return 100, ReasonOverride
	case r.override == Off:
		return 0, ReasonOverride
	case r.value.Version == 0:
		return r.fallback, ReasonDefault
	case r.stale:
		return r.fallback, ReasonStale
	}
	return r.value.Percent, ReasonSource
}
