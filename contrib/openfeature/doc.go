// Package openfeature lets a feature management system that speaks OpenFeature hold the percentage of a
// [featureflag.Flag].
//
//	import sdk "github.com/open-feature/go-sdk/openfeature"
//
//	source, err := openfeature.Source(sdk.NewClient("my-app"), openfeature.Config{})
//	if err != nil {
//		return err
//	}
//	flag, err := featureflag.New(featureflag.Config{Name: "use-redis", Source: source})
//
// The system holds one number, the percentage 0 to 100, as a flag of type float. It is evaluated in the background, at
// every [featureflag.Config.Refresh] and when the provider tells of a change; no key is ever sent to it. Which keys are
// chosen is decided by package featureflag, so that all processes agree and a higher percentage only adds keys. All
// processes must therefore get the same number: no targeting rule or split of the system's own may tell them apart.
//
// # What counts as a value
//
// An evaluation that fails is an error of the load: the last good percentage stays. So it is with one that answers the
// default for whatever reason, as when no provider is set or the provider isn't ready. A flag that the system doesn't
// know is [featureflag.ErrNotFound]. A number outside 0 to 100 is refused by package featureflag.
//
// A flag that is disabled in the system, and for which the provider has no value therefore, counts as killed: it is on
// for no key, at once. One that is disabled but has a value, such as an off variation, gets that value.
//
// What a provider answers from its cache counts as loaded: [featureflag.Config.StaleAfter] doesn't see that a provider
// has lost its server, unless it answers with errors then.
//
// # Versions
//
// Processes can compare versions of a flag only if the source has them: see package featureflag. If the flag's metadata
// has a whole number named "version" ([Config.Version]), that is the version. A change of the percentage must raise
// it: a change without a larger version is refused with [featureflag.ErrVersion]. A version that isn't a whole number
// from 1 up is an error, and so is one that was there before and is missing.
//
// A disabled flag that has no value may go without a larger version, and without any. It is killed all the same, though
// each process numbers that alone; [featureflag.Config.OnError] gets ErrVersion as long as it lasts. Versions should
// start above 1: that is what a process counts that starts while the flag is disabled and has none.
//
// Without such metadata, changes are counted from 1 in each process alone, and from 1 again when it restarts. Two
// processes with the same Version may then give different answers, and no order of their versions means anything. That
// will do for a feature that is on or off. It won't do for a migration that moves counts along with the flag: there,
// the larger version wins, and a process that has just started would be taken for one that is behind.
//
// # Concurrency
//
// A source may be used by several flags and from any goroutine. It owns no goroutine. A load takes as long as the
// provider: one that doesn't return when its context ends holds up its flag, and the flag's Close.
package openfeature
