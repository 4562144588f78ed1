// Package insight has observers that keep something: counts of decisions and the keys that are denied most ([Recorder]), notices
// of keys near their limits ([NearLimit]), and policies that are tried without being enforced ([Shadow]).
//
//	recorder, err := insight.New(insight.Config{WatchedKeys: 1000})
//	...
//	t, err := throttler.New(throttler.Config{Policy: policy, Observer: throttler.Observers(recorder, telemetry)})
//	...
//	operators.Handle("/debug/sluice", insight.Handler(recorder, insight.HandlerConfig{})) // JSON, and a live page for a browser
//
// What they keep is of this process alone, and bounded in memory. None of them delays a request by a call. Under overload
// notices and shadow requests are dropped.
//
// All are safe for concurrent use, and several Throttlers may share one. Close a NearLimit or Shadow after its Throttlers.
package insight
