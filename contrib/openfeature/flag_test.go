package openfeature_test

import (
	"errors"
	"testing"

	"github.com/sluice-go/sluice/contrib/openfeature"
	"github.com/sluice-go/sluice/featureflag"
)

func loaded(percent float64, generation uint64) func(featureflag.State) bool {
	return func(s featureflag.State) bool {
		return s.Err == nil && s.Percent == percent && s.Generation == generation
	}
}

func refused(percent float64, generation uint64, err error) func(featureflag.State) bool {
	return func(s featureflag.State) bool {
		return errors.Is(s.Err, err) && s.Percent == percent && s.Generation == generation
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	s := newSystem(t).set(answer{value: 10, metadata: version(7)}).start()
	f := open(t, featureflag.Config{Name: "use-redis", Source: s.source(openfeature.Config{}), Refresh: quick})
	if st := await(t, f, "the first value", loaded(10, 7)); st.Version != 7<<14 {
		t.Errorf("version %d, want %d", st.Version, 7<<14)
	}
	s.set(answer{value: 20, metadata: version(8)})
	await(t, f, "a larger version", loaded(20, 8))
	s.set(answer{value: 30, metadata: version(8)})
	await(t, f, "the refusal of a change without a larger version", refused(20, 8, featureflag.ErrVersion))
	s.set(answer{value: 30, metadata: version(9)})
	await(t, f, "the larger version after it", loaded(30, 9))
	s.set(answer{value: 40}) // the version is missing
	st := await(t, f, "the error", func(s featureflag.State) bool { return s.Err != nil })
	if st.Percent != 30 || st.Generation != 9 || errors.Is(st.Err, featureflag.ErrVersion) {
		t.Errorf("%+v", st)
	}
	s.set(answer{value: 101, metadata: version(10)})
	await(t, f, "the refusal of 101 %", func(s featureflag.State) bool {
		var refusal *featureflag.Error
		return errors.As(s.Err, &refusal) && s.Percent == 30
	})
	s.set(answer{value: 50, metadata: version(11)})
	await(t, f, "a good value", loaded(50, 11))
}

func TestWithoutVersionsChangesAreCounted(t *testing.T) {
	t.Parallel()
	s := newSystem(t).set(answer{value: 10}).start()
	src := s.source(openfeature.Config{})
	f := open(t, featureflag.Config{Name: "use-redis", Source: src, Refresh: quick})
	await(t, f, "the first value", loaded(10, 1))
	s.set(answer{value: 20})
	await(t, f, "the second value", loaded(20, 2))
	s.set(answer{disabled: true})
	if st := await(t, f, "the kill", loaded(0, 3)); st.Reason != featureflag.ReasonKilled {
		t.Errorf("%+v", st)
	}
	s.set(answer{value: 20})
	await(t, f, "the end of the kill", loaded(20, 4))
	// The documented consequence: a process that starts now counts from 1.
	late := open(t, featureflag.Config{Name: "use-redis", Source: src, Refresh: quick})
	await(t, late, "the value", loaded(20, 1))
}

// A flag that is disabled is off at once, whatever its version says, and back when it is enabled.
func TestDisabledIsKilled(t *testing.T) {
	t.Parallel()
	s := newSystem(t).set(answer{value: 40, metadata: version(7)}).start()
	f := open(t, featureflag.Config{Name: "use-redis", Source: s.source(openfeature.Config{}), Refresh: quick})
	before := await(t, f, "the value", loaded(40, 7))
	s.set(answer{disabled: true}) // the memory provider has no metadata for it
	st := await(t, f, "the kill", refused(0, 7, featureflag.ErrVersion))
	if st.Reason != featureflag.ReasonKilled || st.Version != before.Version+1 {
		t.Errorf("%+v after %+v", st, before)
	}
	s.set(answer{value: 40, metadata: version(7)})
	await(t, f, "the end of the kill", loaded(40, 7))
	s.set(answer{disabled: true})
	await(t, f, "the second kill", refused(0, 7, featureflag.ErrVersion))
	s.set(answer{value: 60, metadata: version(8)})
	await(t, f, "the value after it", loaded(60, 8))

	// A process that starts while it is disabled takes up the versions later.
	s.set(answer{disabled: true})
	late := open(t, featureflag.Config{Name: "use-redis", Source: s.source(openfeature.Config{}), Refresh: quick, Default: 100})
	await(t, late, "the kill", loaded(0, 1))
	s.set(answer{value: 60, metadata: version(8)})
	await(t, late, "the value after it", loaded(60, 8))
}
