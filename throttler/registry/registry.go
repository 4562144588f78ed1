// Package registry gives keys their policies by a document that may change while Throttlers use it.
//
//	policies, err := registry.Open("policies.json", registry.Config{})
//	...
//	t, err := throttler.New(throttler.Config{Policies: policies})
//
// It does not promise that processes change to a new document in the same instant: each polls its own file.
//
// A Registry is safe for concurrent use.
package registry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Registry holds named policies and assigns them to keys, by a document, most often a file, in JSON or YAML:
//
//	{
//	  "version":  "2026-11-21",
//	  "policies": {"free": ["10/1s", "240/1h"], "pro": ["100/1s"], "stricter": ["5/1s"]},
//	  "default":  "free",
//	  "keys":     {"tenant:7": "pro", "internal:*": "pro"},
//	  "allow":    ["healthcheck", "addr:10.0.*"],
//	  "deny":     ["tenant:13"],
//	  "shadow":   {"free": "stricter"}
//	}
//
// Limits are in the text form of limit.Parse. A key has the policy that keys gives it, or else that of the longest matching
// entry that ends in *, or else the default. Allow and deny are as in throttler.Config. Write keys as they are counted:
// httplimit.AddrKey returns the key of an address (of an IPv6 client its /64), httplimit.HeaderKey that of a header's value.
// Shadow gives a policy a shadow, which should be stricter; see insight.Shadow. All members but policies and default may be
// missing. Version tells documents apart for people. $schema is for editors; package schemas has the schema. A document is
// checked as a whole, and every problem is reported: a member that is unknown or given twice, a policy that is not defined, a
// limit that can't be read.
//
// Counts are stored by the name of a policy. A key that is given another policy starts with its full quota. A key whose
// policy has changed its limits keeps what it has used of those whose window is unchanged.
//
// Lookups take no lock and allocate nothing. A policy that a new document leaves unchanged keeps its address.
type Registry struct {
	cfg  Config
	held atomic.Pointer[view] // replaced, never changed

	mu      sync.Mutex // guards refused, and is held while held is replaced
	refused string     // why the current file is not in force; empty if it is

	stop    context.CancelFunc
	running sync.WaitGroup
}

var _ throttler.PolicySource = (*Registry)(nil)

// Config configures a Registry. The zero value is ready to use.
type Config struct {
	// Refresh is how often a file is read. Zero: 1 s. Negative: it is read once.
	Refresh time.Duration

	// OnReload is called after the file has changed, with the document in force: err is nil, or why the new content was
	// refused. It is called once for each problem, by the goroutine that reads the file. Close waits for it, so it must not
	// close the Registry. If nil, nothing is called.
	OnReload func(now Info, err error)

	// Logger logs the same. If nil, slog.Default() is used.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Refresh == 0 {
		c.Refresh = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Info identifies the document in force.
type Info struct {
	Version string    `json:"version,omitempty"` // as the document says
	Digest  string    `json:"digest"`            // SHA-256 of the document, as sha256sum prints it
	Loaded  time.Time `json:"loaded"`            // by this host's clock

	// Refused is why the current content of the file is not in force; empty if it is.
	Refused string `json:"refused,omitempty"`
}

// New makes a Registry from a document in JSON. Open makes one that follows a file.
func New(document []byte, cfg Config) (*Registry, error) {
	r := &Registry{cfg: cfg.withDefaults(), stop: func() {}}
	if err := r.Update(document); err != nil {
		return nil, err
	}
	return r, nil
}

// Update puts a new document, in JSON, in force. If the document is wrong nothing changes, and Update returns every problem, as
// joined *limit.Error values. It is for documents that come from elsewhere than a file.
func (r *Registry) Update(document []byte) error { return r.update(document, document) }

// update puts a document in force. Its text is the same in JSON.
func (r *Registry) update(document, text []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := parse(document, text, r.held.Load())
	if err != nil {
		return err
	}
	r.held.Store(v)
	return nil
}

// Info identifies the document in force.
func (r *Registry) Info() Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	info := r.held.Load().info
	info.Refused = r.refused
	return info
}

// Policy returns the policy of a name, or nil. It must not be changed. Look it up for each request: a policy never changes,
// so one that is kept has the limits of the document it came from.
func (r *Registry) Policy(name string) *limit.Policy { return r.held.Load().byName[name] }

// Policies returns all policies, by name. They must not be changed.
func (r *Registry) Policies() []*limit.Policy {
	return sorted(r.held.Load().byName)
}

// Enforced returns the policies but for those that the document names as shadows only, by name. They must not be changed.
func (r *Registry) Enforced() []*limit.Policy { return r.held.Load().enforced() }

// View returns the document in force, as Throttlers use it. It never changes.
func (r *Registry) View() throttler.PolicyView { return r.held.Load() }

// Close stops reading the file. The document in force stays in force.
func (r *Registry) Close() error {
	r.stop()
	r.running.Wait()
	return nil
}
