package insight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/nametable"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/registry"
)

// Config configures a Recorder. The zero value counts decisions only.
type Config struct {
	// Policies and the policies that Registry enforces are shown with their limits, even before their first decision. Shadow's
	// counts and NearLimit's latest notices are shown. Nil: none.
	Policies  []limit.Policy
	Registry  *registry.Registry
	Shadow    *Shadow
	NearLimit *NearLimit

	// WatchedKeys is how many keys are watched to find the most denied: at most 65,536, and at least 1,000, because with fewer
	// chance decides which are shown. Zero: none.
	WatchedKeys int

	// HalfLife is the time after which a denial counts half in TopDenied. Zero: 10 minutes.
	HalfLife time.Duration

	// HashKey is the secret, of 16 bytes or more, that keys are hashed with in TopDenied. With the same secret a key has the
	// same hash in all processes. Empty: a random one.
	HashKey []byte
}

func (c *Config) validate() error {
	var errs []error
	bad := func(field, value, bound string) {
		errs = append(errs, &limit.Error{Field: field, Value: value, Bound: bound})
	}
	if c.WatchedKeys < 0 || c.WatchedKeys > maxWatchedKeys {
		bad("WatchedKeys", strconv.Itoa(c.WatchedKeys), "must be from 0 to "+strconv.Itoa(maxWatchedKeys))
	}
	if c.HalfLife < 0 {
		bad("HalfLife", c.HalfLife.String(), "must not be negative")
	}
	if n := len(c.HashKey); n > 0 && n < 16 {
		bad("HashKey", strconv.Itoa(n)+" bytes", "must have at least 16")
	}
	return errors.Join(errs...)
}

// Recorder is an Observer that counts decisions and watches the keys that are denied most. Make one with New.
type Recorder struct {
	cfg     Config
	started time.Time
	counts  *nametable.Table[*policyCounts] // by policy
	top     *mostDenied                     // nil if no keys are watched
	hashKey []byte
}

// New makes a Recorder. It reports every problem of the configuration at once.
func New(cfg Config) (*Recorder, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("insight: %w", err)
	}
	cfg.Policies = slices.Clone(cfg.Policies)
	for i, p := range cfg.Policies {
		cfg.Policies[i].Limits = slices.Clone(p.Limits)
	}
	r := &Recorder{
		cfg: cfg, started: time.Now(), hashKey: newHashKey(cfg.HashKey),
		counts: nametable.New(countedPolicies, func(string) *policyCounts { return new(policyCounts) }),
	}
	r.top = newMostDenied(&cfg, r.hashKey)
	return r, nil
}

// Start implements [throttler.Observer].
func (r *Recorder) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

// End implements [throttler.Observer].
func (r *Recorder) End(_ context.Context, e *throttler.Event) {
	if e.Op != throttler.OpTake {
		return
	}
	d := &e.Decision
	r.counts.Get(e.Policy.Name).record(d, e.Cost, e.Err)
	if r.top != nil && e.Err == nil && !d.Allowed && d.Source != throttler.Fallback && d.Source != throttler.Listed {
		r.top.add(e.Key)
	}
}

// Stats is what a Recorder has seen since New. It is made for JSON: for an expvar.Func or a Handler.
type Stats struct {
	Registry   *registry.Info `json:"registry,omitempty"`
	Policies   []PolicyStats  `json:"policies"` // by name; a policy of the registry that is only a shadow is in Shadow alone
	Shadow     ShadowCounts   `json:"shadow"`
	TopDenied  []DeniedKey    `json:"top_denied,omitempty"`  // at most ten, hashed
	NearLimits []NearKey      `json:"near_limits,omitempty"` // at most ten, hashed, the latest first
}

const topInStats = 10

// Stats returns what has been decided.
func (r *Recorder) Stats() Stats {
	return r.stats(topInStats, r.KeyHash)
}

// stats returns what has been decided, with at most n keys in each list, as show converts them.
func (r *Recorder) stats(n int, show func(key string) string) Stats {
	s := Stats{Policies: []PolicyStats{}, TopDenied: r.top.list(n, show), NearLimits: r.cfg.NearLimit.list(n, show)}
	if r.cfg.Shadow != nil {
		s.Shadow = r.cfg.Shadow.Counts()
	}
	limits := map[string][]limit.Limit{}
	for _, p := range r.cfg.Policies {
		limits[p.Name] = p.Limits
	}
	if r.cfg.Registry != nil {
		info := r.cfg.Registry.Info()
		s.Registry = &info
		for _, p := range r.cfg.Registry.Enforced() {
			limits[p.Name] = p.Limits
		}
	}
	byName := r.counts.All()
	full := len(byName) > countedPolicies // a name without counts may be among the others
	for name := range limits {
		if byName[name] == nil && !full {
			byName[name] = new(policyCounts)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if p := byName[name].stats(); name != nametable.Other || p.Allowed+p.Denied+p.Errors > 0 {
			p.Policy, p.Limits = name, slices.Clone(limits[name])
			s.Policies = append(s.Policies, p)
		}
	}
	return s
}

// TopDenied returns the keys that are denied most, most denied first, at most n. They are hashed as by KeyHash, because keys are
// personal data. Without Config.WatchedKeys there are none. Denials by the failure policy or a deny list don't count: the
// former show nothing about the key, and the latter are known. Contention counts.
//
// They are found by Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in
// Data Streams"): with m watched keys, a key with more than about 1/m of the denials is among them.
func (r *Recorder) TopDenied(n int) []DeniedKey { return r.top.list(n, r.KeyHash) }

// TopDeniedInClear is TopDenied with the keys as they are. Of a key longer than 256 bytes only the hash is known.
func (r *Recorder) TopDeniedInClear(n int) []DeniedKey { return r.top.list(n, inClear) }

func inClear(key string) string { return key }

// KeyHash is what stands for a key in TopDenied: the first half of its HMAC-SHA256 with Config.HashKey, in hexadecimal.
func (r *Recorder) KeyHash(key string) string { return keyHash(r.hashKey, key) }
