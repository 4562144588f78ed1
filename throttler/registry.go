package throttler

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// Registry holds named policies, and says which keys have which. It is made from a JSON document, most often a file that it
// follows, and can be changed while Throttlers use it:
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
// Limits are in the text form of limit.Parse. A key has the policy that keys gives it, or else that of the longest entry
// there that ends in * and begins as it does, or else the default. Allow and deny are as in Config. Keys are written as they
// are counted, or list nobody: ClientAddr's, of package httplimit, begin with "addr:" and are what AddrKey tells, of an IPv6
// client its /64; and what Header makes of a request is a hash, which HeaderKey tells. Shadow gives policies a
// shadow, which should be stricter: see Config.Shadow, which is that of all others. All but policies and default may be missing;
// version is for people to tell documents apart by. A document is checked as a whole: a member that is unknown or given
// twice, a policy that isn't there or a limit that can't be read is refused, with all else that is wrong.
//
// Counts are stored by the name of a policy: a key that is given another one starts with its full quota, one whose policy
// has changed its limits keeps what it has used of those that still have their window.
//
// A Registry is safe for concurrent use, and several Throttlers may share one. What it finds for a key takes no lock and no
// allocation. A policy that a new document leaves as it was keeps its address, so that whatever goes by it goes on.
type Registry struct {
	cfg  RegistryConfig
	held atomic.Pointer[policies] // replaced, never changed

	mu      sync.Mutex // guards what follows, and held while it is replaced
	refused string     // why the file as it is now is not in force; empty if it is

	stop    context.CancelFunc
	running sync.WaitGroup
}

// RegistryConfig configures a Registry. The zero value is ready to use.
type RegistryConfig struct {
	// Refresh is how often a file is looked at. Zero: 1 s. Negative: it is read once.
	Refresh time.Duration

	// OnReload is told, after the file has changed, what is in force: err is nil, or why the new content was refused. It
	// is called by the goroutine that looks at the file, and told of each problem once. Close waits for it, so that it must
	// not close the Registry. Nil: none.
	OnReload func(now RegistryInfo, err error)

	// Logger is told of the same. Nil: slog.Default().
	Logger *slog.Logger
}

func (c RegistryConfig) withDefaults() RegistryConfig {
	if c.Refresh == 0 {
		c.Refresh = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// RegistryInfo says which document is in force.
type RegistryInfo struct {
	Version string    `json:"version,omitempty"` // as the document says
	Digest  string    `json:"digest"`            // SHA-256 of the document, as sha256sum prints it
	Loaded  time.Time `json:"loaded"`            // by this host's clock

	// Refused is why what the file holds now is not in force; empty if it is.
	Refused string `json:"refused,omitempty"`
}

// policies are what a document says. They are not changed once they are made.
type policies struct {
	info     RegistryInfo
	byName   map[string]*limit.Policy
	fallback *limit.Policy
	keys     keyTable[*limit.Policy]
	lists    *lists                   // nil for none
	shadows  map[string]*shadowPolicy // by the name of the policy that is enforced
}

// NewRegistry makes a Registry from a document. See OpenRegistry for one that follows a file.
func NewRegistry(document []byte, cfg RegistryConfig) (*Registry, error) {
	r := &Registry{cfg: cfg.withDefaults(), stop: func() {}}
	if err := r.Update(document); err != nil {
		return nil, err
	}
	return r, nil
}

// Update puts a new document in force, or changes nothing and returns everything that is wrong with it, as *limit.Error
// values joined. It is for documents that come from elsewhere than a file.
func (r *Registry) Update(document []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := parsePolicies(document, r.held.Load())
	if err != nil {
		return err
	}
	r.held.Store(p)
	return nil
}

// Info says which document is in force.
func (r *Registry) Info() RegistryInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	info := r.held.Load().info
	info.Refused = r.refused
	return info
}

// Policy is the policy of a name, or nil. It must not be changed. Ask each time: one that is kept keeps the limits of the
// document that it is of.
func (r *Registry) Policy(name string) *limit.Policy { return r.held.Load().byName[name] }

// Policies are all policies, by name. They must not be changed.
func (r *Registry) Policies() []*limit.Policy {
	var all []*limit.Policy
	for _, p := range r.held.Load().byName {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *limit.Policy) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// PolicyFor is the policy of a key, never nil. It must not be changed. It fits Config.PolicyFor, but [Config.Registry]
// heeds the lists, too.
func (r *Registry) PolicyFor(_ context.Context, key string) *limit.Policy {
	return r.held.Load().of(key)
}

// enforced are the policies but for those that are mentioned as shadows only.
func (p *policies) enforced() []*limit.Policy {
	rest := maps.Clone(p.byName)
	for _, s := range p.shadows {
		delete(rest, s.told.Name)
	}
	add := func(its *limit.Policy) { rest[its.Name] = its }
	add(p.fallback)
	for _, its := range p.keys.exact {
		add(its)
	}
	for i := range p.keys.prefixes {
		add(p.keys.prefixes[i].value)
	}
	return slices.Collect(maps.Values(rest))
}

// of is the policy of a key.
func (p *policies) of(key string) *limit.Policy {
	if its, ok := p.keys.find(key); ok {
		return its
	}
	return p.fallback
}

// Close stops looking at the file. What is in force stays so.
func (r *Registry) Close() error {
	r.stop()
	r.running.Wait()
	return nil
}
