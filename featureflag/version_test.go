package featureflag_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/featureflag"
)

// process is one of several that follow the same source, each at its own pace.
type process struct {
	src  *fake
	flag *featureflag.Flag

	// The model: what the flag must answer.
	seen     featureflag.Value // the newest of all it has seen
	override featureflag.Override
	success  time.Time
	last     featureflag.State
}

const (
	modelDefault = 33
	modelRefresh = time.Second
	modelStale   = 5 * time.Second
)

func (p *process) percent() float64 {
	switch {
	case p.seen.Killed:
		return 0
	case p.override == featureflag.On:
		return 100
	case p.override == featureflag.Off:
		return 0
	case p.seen.Version == 0, time.Since(p.success) >= modelStale:
		return modelDefault
	}
	return p.seen.Percent
}

// bubble hides the test's Deadline, which no bubble has, from rapid.
type bubble struct{ *testing.T }

// Processes see some of the changes of one source, in order or with lagging copies in between, lose it, and are
// overridden. Whatever happens, versions order what they have seen.
func TestVersionsOrderChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(t *rapid.T) {
			written := []featureflag.Value{value(50, 1)} // all that the source ever held
			processes := make([]*process, 3)
			for i := range processes {
				p := &process{src: &fake{err: errDown}}
				f, err := featureflag.New(featureflag.Config{
					Name: "x", Source: p.src, Refresh: modelRefresh, StaleAfter: modelStale, Default: modelDefault,
				})
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				synctest.Wait()
				p.flag, p.last = f, f.State()
				processes[i] = p
			}
			one := rapid.SampledFrom(processes)
			t.Repeat(map[string]func(*rapid.T){
				"write": func(t *rapid.T) {
					last := written[len(written)-1]
					written = append(written, featureflag.Value{
						Percent: rapid.SampledFrom([]float64{0, modelDefault, 50, 100}).Draw(t, "percent"),
						Version: last.Version + rapid.Uint64Range(1, 3).Draw(t, "raise"),
						Killed:  rapid.IntRange(0, 4).Draw(t, "killed") == 0,
					})
				},
				"see": func(t *rapid.T) {
					p := one.Draw(t, "process")
					p.src.say(rapid.SampledFrom(written).Draw(t, "value"), nil)
				},
				"lose": func(t *rapid.T) { one.Draw(t, "process").src.say(featureflag.Value{}, errDown) },
				"override": func(t *rapid.T) {
					p := one.Draw(t, "process")
					p.override = featureflag.Override(rapid.IntRange(0, 2).Draw(t, "to"))
					p.flag.Override(p.override)
				},
				"wait": func(t *rapid.T) {},
				"": func(t *rapid.T) {
					time.Sleep(modelRefresh)
					synctest.Wait()
					for i, p := range processes {
						v := p.src.value
						switch {
						case p.src.err != nil:
						case v.Version >= p.seen.Version:
							p.seen, p.success = v, time.Now()
						case v.Killed:
							p.seen.Killed = true // a kill is never refused, however old
						}
						s := p.flag.State()
						if s.Percent != p.percent() || s.Generation != p.seen.Version {
							t.Fatalf("process %d: %v %% of generation %d, want %v %% of %d", i, s.Percent, s.Generation, p.percent(), p.seen.Version)
						}
						if s.Version < p.last.Version {
							t.Fatalf("process %d: version %d after %d", i, s.Version, p.last.Version)
						}
						if s.Percent != p.last.Percent && s.Version == p.last.Version {
							t.Fatalf("process %d: %v %% and %v %% at version %d", i, p.last.Percent, s.Percent, s.Version)
						}
						p.last = s
					}
					for _, a := range processes {
						for _, b := range processes {
							if a.seen.Version > b.seen.Version && a.last.Version <= b.last.Version {
								t.Fatalf("%s has seen more than %s", describe(a), describe(b))
							}
							if a.last.Version == b.last.Version && a.last.Version%16384 == 0 && a.last.Percent != b.last.Percent {
								t.Fatalf("%s differs from %s", describe(a), describe(b))
							}
						}
					}
				},
			})
		})
	})
}

func describe(p *process) string { return fmt.Sprintf("%+v, which saw %+v,", p.last, p.seen) }
