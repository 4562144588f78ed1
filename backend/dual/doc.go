// Package dual moves keys from one backend to another by a flag, forward and back, with their counts.
//
//	migrating, err := dual.New(dual.Config{
//		Old: onMemcached, New: onRedis, Decide: flag.Decide, CarryOver: true,
//	})
//	...
//	t, err := throttler.New(throttler.Config{Backend: migrating, Policy: policy})
//
// Decide chooses the side of a key, as the Decide of a featureflag.Flag does by percentage. With CarryOver the first call after a
// change seals the key on the one side and adopts its counts on the other, so no change of the flag admits more than Max. Shadow
// also calls the other side in the background, and counts where the two disagree.
//
// # What it does not promise
//
// While the side that a key comes from is unreachable, decisions go on without its counts, and are Bounded with the cause
// [backend.ErrNotHandedOver]. Without CarryOver a key that changes sides may be admitted up to its Max a second time. Processes
// must see a change within Config.Settle.
//
// # Concurrency
//
// A [Dual] is safe for concurrent use and holds no lock during a call. Goroutines run for shadow calls only. It owns both
// sides: Close closes them.
package dual
