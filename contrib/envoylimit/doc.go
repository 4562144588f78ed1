// Package envoylimit is the rate limit service that Envoy, Istio and Gateway API implementations call,
// envoy.service.ratelimit.v3.RateLimitService, with the configuration files of github.com/envoyproxy/ratelimit.
//
//	set, err := rules.Parse(files, rules.Config{})
//	...
//	service, err := envoylimit.New(envoylimit.Config{Rules: set, Throttler: throttler.Config{Backend: counts}})
//	...
//	defer service.Close()
//	server := grpc.NewServer()
//	ratelimitv3.RegisterRateLimitServiceServer(server, service)
//
// The command cmd/sluice-envoy is a server of it, with health, metrics and settings. README.md has a table of what differs from the
// reference.
//
// # Decisions
//
// The descriptors of a request are charged all or none: a denied request charges nothing. They are charged one after the other, in
// the order and with the care of throttler.Throttler.AllowAll. Rules in shadow_mode or quota_mode, or with overrun, are charged by
// themselves, and never undo others.
//
// hits_addend is what a descriptor costs. 0 asks without charging: over the limit is a descriptor of which nothing is left.
// is_negative_hits gives back, as throttler.Throttler.Grant does: never more than what counts at the moment, of a sliding
// window the latest, of a bucket what has not refilled. What a request gives back stays given back if the request is denied.
//
// # What it does not promise
//
// The charge of several descriptors is not atomic: one that is given back is missing to others for two round trips. With leases
// what processes hold counts as charged: negative hits above what was used give that back, too, each time, and as many requests
// are admitted above the limit. What another process has admitted on credit can be given back once that has charged it. Without a
// verdict the failure policy of the Throttler decides; under throttler.FailError the call fails with UNAVAILABLE, and Envoy's
// failure_mode_deny decides.
//
// A Service is safe for concurrent use by any number of servers.
package envoylimit
