// Package featureflag turns a feature on for a percentage of keys, and lets that percentage change without a deploy.
//
//	flag, err := featureflag.New(featureflag.Config{
//		Name:   "use-redis",
//		Source: featureflag.File("/etc/app/flags.json"),
//	})
//	if err != nil {
//		return err
//	}
//	defer flag.Close()
//
//	if flag.Enabled("user:42") {
//		// the new way
//	}
//
// A key's answer depends on the flag's name, the key and the percentage, and on nothing else: it is the same in every
// process and after every restart. Raising the percentage only adds keys, lowering it only removes keys. Flags with
// different names choose their keys independently.
//
// The percentage may have any fraction. Keys are divided far below 0.001, and a change by 0.001 moves one key in
// 100,000.
//
// # What is not promised
//
// Processes don't change in the same instant: each one looks at its source every [Config.Refresh], and Redis tells of
// changes at once where it can. A caller that moves data along with a flag therefore needs the version, too: [Flag.Decide].
//
// The hash is public: a client that chooses keys can choose their side of a flag.
//
// # Versions
//
// Every change of what a flag answers raises its version. Versions order the changes between processes, too:
//
//   - A source stores a version, the generation, beside the percentage. Of two processes, the one that has seen the
//     newer generation has the larger version.
//   - What changes in one process alone, through [Flag.Override] or because the flag became stale, raises its version
//     by 1: above the generation it departs from, below the next one. A restart loses it.
//   - So two processes whose version is the same multiple of 16384 give the same answers.
//
// The version is generation x 16384 + the number of local changes since (which stops counting at 16383), at most 2^52-1, so
// that a script's floating-point numbers hold it. How far generations can be compared is up to the source:
//
//	Static   always generation 1. A change is a deploy: old and new processes have equal versions meanwhile.
//	File     as the file says. [Set], [Kill] and [Revive] raise it; an edit by hand must. Comparable between all
//	         who read the file or a copy of it.
//	Redis    as the hash says. [Set], [Kill] and [Revive] raise it in one atomic step. Comparable between all who
//	         read the key.
//	Func     as the function says. Without a version, changes are counted from 1 in each process alone: not comparable.
//
// Set, Kill and Revive store the time in hundredths of a second, or the stored version plus 1 if that is more. So
// versions go on growing where the stored one was lost: a deleted file, a flushed Redis, a failover that lost the last
// write. (Unless the next write comes within the same hundredth, or from a clock that is behind.)
//
// A flag never goes back. Content that changed without a larger version is rejected, the last good value stays, and
// [Config.OnError] gets [ErrVersion]. A kill is never rejected.
//
// # When the source is unavailable
//
// Before the first load, [Config.Default] applies and the version is 0; [Flag.Ready] waits for it. Later the last good
// value stays, whether the source is out of reach, empty, half-written or wrong. If [Config.StaleAfter] is set,
// Default replaces it after that time without a successful load, until the next one. A killed flag stays killed.
//
// # Concurrency
//
// All methods may be called from any goroutine. [Flag.Enabled] takes no lock and allocates nothing. A Flag owns one
// goroutine, a second one if its source can push, and Close waits for both.
package featureflag
