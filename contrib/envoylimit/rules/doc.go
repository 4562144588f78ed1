// Package rules reads the configuration files of Envoy's rate limit service and finds the limit of a descriptor.
//
//	set, err := rules.Parse([]rules.File{{Name: "web.yaml", Text: text}}, rules.Config{})
//	...
//	match := set.Domain("web").Match(entries)
//
// The format is that of github.com/envoyproxy/ratelimit:
//
//	domain: web
//	descriptors:
//	  - key: user
//	    rate_limit: {unit: minute, requests_per_unit: 100}
//	  - key: path
//	    value: /reports/*
//	    share_threshold: true
//	    rate_limit: {unit: hour, requests_per_unit: 1000}
//
// Beside it a member sluice says what that format can't express. A file without one loads in both services:
//
//	domain: web
//	sluice:
//	  lease: {processes: 4, life: 5s}        # batches held by each process, see package lease; slack: 0.05 admits on credit
//	descriptors:
//	  - key: user
//	    rate_limit: {unit: minute, requests_per_unit: 100}
//	    sluice:
//	      sliding: {precision: 1s}           # a rolling window; or
//	      bucket: {burst: 20}                # a token bucket of requests_per_unit each unit
//	      overrun: true                      # a request above what is left is denied, and counts in full
//
// Files are read strictly, and all problems are reported at once, each with its file and line: a member that is unknown or given
// twice, a value of another type, a limit that can't be counted. Errors hold no values of descriptors, which may be personal data.
//
// A Set never changes and is safe for concurrent use.
package rules
