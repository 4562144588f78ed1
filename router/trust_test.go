package router_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// publish writes a topology to a server as another process with write access would.
func publish(t testing.TB, on control.Publisher, topology router.Topology) {
	t.Helper()
	text := marshal(t, topology)
	n := control.Announcement{Version: int64(topology.Epoch), Digest: topology.Digest(), Text: string(text)}
	if there, err := on.Publish(context.Background(), n); err != nil || there.Version != n.Version {
		t.Fatalf("%+v, %v", there, err)
	}
}

func keyPair(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func signed(t testing.TB, topology router.Topology, key ed25519.PrivateKey) router.Topology {
	t.Helper()
	topology, err := topology.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// rejections are what was not taken over from servers, and why.
func (l *log) rejections() (all []string) {
	for _, e := range l.all() {
		if e.Kind == router.TopologyRejected {
			all = append(all, e.String())
		}
	}
	return all
}

// TestPublishedTopologies: what a router takes over from a server, by its configuration.
func TestPublishedTopologies(t *testing.T) {
	public, private := keyPair(t)
	other, stranger := keyPair(t)
	one := topo(1, 1)
	known := after(topo(2, 2), topo(1, 1))      // 10.0.0.2 is in the process's own topology, as a replica
	foreign := after(topo(2, 1, 9), topo(1, 1)) // 10.0.0.9 is not
	past := after(topo(2, 1), topo(1, 9))       // nor is it in the past
	far := topo(2+router.MaxEpochJump, 1)       // one too many
	last := topo(uint64(limit.MaxCount), 1, 2)  // there is none after it
	tampered := signed(t, known, private)       // and changed afterwards
	tampered.Groups = slices.Clone(foreign.Groups)
	one.Groups[0].Replicas = []string{"10.0.0.2:6379"}
	keys := []ed25519.PublicKey{other, public}
	for name, test := range map[string]struct {
		cfg       router.Config
		published router.Topology
		refused   string // empty: it is taken over
		untrusted bool
	}{
		"known addresses":               {router.Config{}, known, "", false},
		"a foreign address":             {router.Config{}, foreign, `address = "10.0.0.9:6379"`, true},
		"a foreign address in the past": {router.Config{}, past, `address = "10.0.0.9:6379"`, true},
		"an address that is allowed":    {router.Config{AllowedAddresses: []string{"10.0.0.8/29"}}, foreign, "", false},
		"another one is allowed":        {router.Config{AllowedAddresses: []string{"10.0.0.0/29", "10.0.0.19", "*.example"}}, foreign, "10.0.0.9", true},
		"any":                           {router.Config{AllowedAddresses: []string{"*"}}, foreign, "", false},
		"the largest epoch":             {router.Config{AllowedAddresses: []string{"*"}}, last, "must be at most 1000001", false},
		"an epoch too far":              {router.Config{}, far, "must be at most 1000001", false},
		"signed":                        {router.Config{TopologyKeys: keys}, signed(t, foreign, private), "", false},
		"not signed":                    {router.Config{TopologyKeys: keys}, known, "signature = none", true},
		"not signed, but allowed":       {router.Config{TopologyKeys: keys, AllowedAddresses: []string{"*"}}, known, "signature = none", true},
		"signed by a stranger":          {router.Config{TopologyKeys: keys[:1]}, signed(t, foreign, private), "signature = 64 bytes", true},
		"changed since":                 {router.Config{TopologyKeys: keys}, tampered, "signature = 64 bytes", true},
		"signed and not allowed":        {router.Config{TopologyKeys: keys, AllowedAddresses: []string{"10.0.0.1"}}, signed(t, foreign, private), "10.0.0.9", true},
		"signed, and an epoch too far":  {router.Config{TopologyKeys: keys}, signed(t, last, private), "must be at most 1000001", false},
		"signed, and nobody asks":       {router.Config{}, signed(t, known, stranger), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant()
			var events log
			var opened atomic.Bool // a connection to the foreign server, which would be told the password
			cfg := test.cfg
			cfg.OnEvent = events.add
			cfg.Node = func(address string) (backend.Backend, error) {
				if address == "10.0.0.9:6379" {
					opened.Store(true)
				}
				return p.node(address)
			}
			publish(t, p.machine("10.0.0.1:6379"), test.published)
			r, err := router.Open(one, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if test.refused == "" {
				await(t, "it is taken over", func() bool {
					return strings.Contains(nodesOf(r), "10.0.0."+map[bool]string{true: "2", false: "9"}[test.published.Groups[0].Name == "g2"]) && r.PreviousTopologies() > 0
				})
				return
			}
			await(t, "it is refused", func() bool { return len(events.rejections()) > 0 })
			said := events.rejections()
			if len(said) != 1 || !strings.Contains(said[0], test.refused) || !strings.HasPrefix(said[0], "g1/10.0.0.1:6379: topology rejected") {
				t.Errorf("%q, want %q", said, test.refused)
			}
			for _, e := range events.all() {
				if e.Kind == router.TopologyRejected && errors.Is(e.Err, router.ErrTopologyUntrusted) != test.untrusted {
					t.Errorf("untrusted: %v", e.Err)
				}
			}
			if n := takeN(t, r, "k", tenAnHour, 3); n != 3 || r.Owner("k") != "g1" || opened.Load() {
				t.Errorf("calls don't go on as before, or a foreign server was asked (%t)", opened.Load())
			}
		})
	}
}

func nodesOf(r *router.Router) string {
	var all []string
	for _, n := range r.Nodes() {
		all = append(all, n.Node)
	}
	return strings.Join(all, " ")
}

// TestKnownIsByRole: an address is known as what it is in the process's own topology. As something else it leads to other servers.
func TestKnownIsByRole(t *testing.T) {
	group := func(g router.Group) router.Topology {
		g.Name = "g"
		return router.Topology{Epoch: 1, Groups: []router.Group{g}}
	}
	sentinel := []string{"10.0.0.1:26379"}
	node := router.Group{Primary: "10.0.0.1:6379", Replicas: []string{"10.0.0.2:6379"}}
	followed := router.Group{Sentinels: sentinel, Master: "main"}
	for _, test := range []struct {
		name       string
		own, other router.Group
		as         string // empty: it is trusted
	}{
		{"a replica as primary", node, router.Group{Primary: "10.0.0.2:6379"}, ""},
		{"the same master", followed, router.Group{Sentinels: sentinel, Master: "main"}, ""},
		{"another master", followed, router.Group{Sentinels: sentinel, Master: "theirs"}, `as a sentinel of master "theirs"`},
		{"a sentinel as primary", followed, router.Group{Primary: sentinel[0]}, "as a node,"},
		{"a sentinel as cluster", followed, router.Group{Cluster: sentinel}, "as a node of a cluster,"},
		{"a node as cluster", node, router.Group{Cluster: []string{"10.0.0.1:6379"}}, "as a node of a cluster,"},
		{"a node as sentinel", node, router.Group{Sentinels: []string{"10.0.0.2:6379"}, Master: "main"}, `as a sentinel of master "main"`},
		{"the same cluster", router.Group{Cluster: []string{"a:1", "b:1"}}, router.Group{Cluster: []string{"B.:1"}}, ""},
	} {
		own, other := group(test.own), group(test.other)
		other = after(router.Topology{Epoch: 2, Groups: other.Groups}, own)
		err := router.Config{}.CheckPublished(own, other)
		if test.as == "" && err != nil || test.as != "" && (!errors.Is(err, router.ErrTopologyUntrusted) || !strings.Contains(err.Error(), test.as)) {
			t.Errorf("%s: %v", test.name, err)
		}
		if err := (router.Config{AllowedAddresses: []string{"10.0.0.0/8", "b"}}).CheckPublished(own, other); err != nil {
			t.Errorf("%s, and allowed: %v", test.name, err)
		}
	}
}

// TestUntrustedConflict: what can't be trusted doesn't stop a router either, under its own epoch.
func TestUntrustedConflict(t *testing.T) {
	public, private := keyPair(t)
	for name, cfg := range map[string]router.Config{"by addresses": {}, "by keys": {TopologyKeys: []ed25519.PublicKey{public}}} {
		t.Run(name, func(t *testing.T) {
			p := newPlant()
			var events log
			cfg.OnEvent, cfg.Node = events.add, p.node
			publish(t, p.machine("10.0.0.1:6379"), topo(1, 9))
			r, err := router.Open(signed(t, topo(1, 1), private), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			await(t, "it is refused", func() bool { return len(events.rejections()) > 0 })
			if n := takeN(t, r, "k", tenAnHour, 3); n != 3 {
				t.Error("it was stopped")
			}
		})
	}
}

// TestSignedIsHandedOn: a process that learns of a signed topology, or has it from a file, leaves it on other servers as it is, so
// that those who ask for signatures take it over there. What isn't signed it leaves nowhere.
func TestSignedIsHandedOn(t *testing.T) {
	public, private := keyPair(t)
	p := newPlant()
	cfg := router.Config{TopologyKeys: []ed25519.PublicKey{public}, Node: p.node}
	r, err := router.Open(topo(1, 1, 2), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := signed(t, after(topo(2, 1, 2, 3), topo(1, 1, 2)), private)
	publish(t, p.machine("10.0.0.1:6379"), next)
	key, _, _ := moved(t, p, topo(1, 1, 2), topo(2, 1, 2, 3))
	behind := p.open(t, topo(1, 1, 2), cfg)
	update(t, r, next)
	await(t, "it is handed on", func() bool { return p.published(2) == 2 && p.published(3) == 2 })
	takeN(t, r, key, tenAnHour, 4)
	if n := takeN(t, behind, key, tenAnHour, 10); n != 6 {
		t.Errorf("%d are admitted, and 6 were left", n)
	}
	update(t, r, topo(3, 1, 2))
	update(t, r, topo(4, 1, 2, 3))
	takeN(t, r, key, tenAnHour, 1) // its origins are asked, and would be told
	if p.published(1) != 2 || p.published(3) != 2 {
		t.Error("a topology without a signature was left on a server")
	}
}

// looker counts how often a server is looked at.
type looker struct {
	*memory.Memory
	looks *atomic.Int64
}

func (l looker) Published(ctx context.Context) (control.Announcement, error) {
	l.looks.Add(1)
	return l.Memory.Published(ctx)
}

func (looker) Close() error { return nil } // the other process goes on

// TestUnsignedIsNotPublished: with keys, a topology without a signature is left nowhere, and an event says so for each server.
// Handovers don't ask again each time. The same one with a signature is left there.
func TestUnsignedIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		var events log
		servers := make(map[string]looker)
		public, private := keyPair(t)
		open := func(onEvent func(router.Event)) *router.Router {
			r, err := router.Open(signed(t, topo(1, 1), private), router.Config{
				Heartbeat: -1, TopologyKeys: []ed25519.PublicKey{public}, OnEvent: onEvent,
				Node: func(address string) (backend.Backend, error) {
					if _, ok := servers[address]; !ok {
						servers[address] = looker{newMemory(t), &looks}
					}
					return servers[address], nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = r.Close() })
			return r
		}
		told, untold := open(events.add), open(nil)
		synctest.Wait()
		second := after(topo(2, 2), topo(1, 1))
		update(t, told, second)
		synctest.Wait()
		var said []string
		for _, e := range events.all() {
			if e.Kind == router.TopologyUnpublished {
				said = append(said, e.Node)
			}
		}
		slices.Sort(said)
		if !slices.Equal(said, []string{"10.0.0.1:6379", "10.0.0.2:6379"}) {
			t.Errorf("events of %q; all: %v", said, events.all())
		}
		looks.Store(0)
		for i := range 40 {
			takeN(t, told, fmt.Sprint("k", i), tenAnHour, 1)
		}
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks for 40 handovers", n)
		}
		if _, err := untold.Take(t.Context(), backend.Request{Key: "k1", Policy: tenAnHour, Cost: 1}); !errors.Is(err, router.ErrTopologyOld) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		if n := len(events.all()); n != 3 { // and one that the topology has changed
			t.Errorf("reported again: %v", events.all())
		}
		update(t, told, signed(t, second, private))
		time.Sleep(time.Minute)
		takeN(t, untold, "k1", tenAnHour, 1)
		if untold.Owner("k1") != "g2" {
			t.Error("the signed one was not published")
		}
	})
}

// TestSignatures: a signature is over all that a topology says, and only that.
func TestSignatures(t *testing.T) {
	public, private := keyPair(t)
	base := after(topo(3, 1, 2), topo(2, 1), topo(1, 2))
	base.Groups[0].Replicas = []string{"10.0.1.1:1"}
	good := signed(t, base, private)
	parsed, err := router.ParseTopology(marshal(t, good))
	if err != nil || parsed.Verify(public) != nil {
		t.Fatalf("read from a file: %v, %v", err, parsed.Verify(public))
	}
	again := base
	again.Previous = &router.Topology{}
	*again.Previous = signed(t, *base.Previous, private) // the one before it was signed, too, as it was published
	again.Signature = good.Signature
	if err := again.Verify(public); err != nil {
		t.Errorf("with a previous that is signed: %v", err)
	}
	for name, change := range map[string]func(t *router.Topology){
		"epoch":            func(t *router.Topology) { t.Epoch++ },
		"seed":             func(t *router.Topology) { t.Seed++ },
		"address":          func(t *router.Topology) { t.Groups[1].Primary = "10.0.0.9:1" },
		"replica":          func(t *router.Topology) { t.Groups[0].Replicas = []string{"10.0.1.9:1"} },
		"weight":           func(t *router.Topology) { t.Groups[0].Weight = 2 },
		"previous":         func(t *router.Topology) { t.Previous = nil },
		"previous address": func(t *router.Topology) { t.Previous.Groups[0].Primary = "10.0.0.9:1" },
		"oldest":           func(t *router.Topology) { t.Previous.Previous.Groups[0].Name = "x" },
		"signature":        func(t *router.Topology) { t.Signature[3] ^= 1 },
		"none":             func(t *router.Topology) { t.Signature = nil },
		"short":            func(t *router.Topology) { t.Signature = t.Signature[:63] },
	} {
		changed, err := router.ParseTopology(marshal(t, good))
		if err != nil {
			t.Fatal(err)
		}
		change(&changed)
		var bad *router.ConfigError
		if err := changed.Verify(public); !errors.As(err, &bad) || bad.Field != "signature" {
			t.Errorf("%s: %v", name, err)
		}
		if name == "none" {
			continue
		}
		if changed.Validate() != nil {
			continue
		}
		if r, err := router.Open(changed, router.Config{TopologyKeys: []ed25519.PublicKey{public}, Node: newPlant().node}); err == nil {
			_ = r.Close()
			t.Errorf("%s: opened with a signature that is wrong", name)
		}
	}
	var bad *router.ConfigError
	if _, err := base.Sign(private[:10]); !errors.As(err, &bad) || bad.Field != "key" {
		t.Errorf("a short key: %v", err)
	}
	if _, err := (router.Topology{}).Sign(private); !errors.As(err, &bad) || bad.Field != "groups" {
		t.Errorf("a topology that is not valid: %v", err)
	}
}

func TestTrustIsValidated(t *testing.T) {
	for field, cfg := range map[string]router.Config{
		"TopologyKeys[0]":     {TopologyKeys: []ed25519.PublicKey{nil}},
		"TopologyKeys[1]":     {TopologyKeys: []ed25519.PublicKey{make([]byte, 32), make([]byte, 64)}},
		"AllowedAddresses[0]": {AllowedAddresses: []string{""}},
		"AllowedAddresses[1]": {AllowedAddresses: []string{"*.redis.internal", "10.0.0.1:6379"}},
		"AllowedAddresses[2]": {AllowedAddresses: []string{"*", "cache", "10.0.0"}},
		"AllowedAddresses[3]": {AllowedAddresses: []string{"::1", "fd00::/8", "10.0.0.1", "a*b"}},
		"AllowedAddresses[4]": {AllowedAddresses: []string{"::ffff:10.0.0.1", "x.y", "*.x.y", "::/0", "::ffff:10.0.0.0/104"}}, // IPv4 is matched as such
		"AllowedAddresses[5]": {AllowedAddresses: []string{"a", "b", "c", "d", "e", "redis.corp."}},                           // addresses lose the dot
		"AllowedAddresses[6]": {AllowedAddresses: []string{"a", "b", "c", "d", "e", "f", "*.example.com."}},
	} {
		_, err := router.Open(topo(1, 1), cfg)
		if got := refusedFields(err); !slices.Equal(got, []string{field}) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestParseTopologyKeys: keys may have text between them. One that is broken is not left out in silence: it may be the one that
// counts.
func TestParseTopologyKeys(t *testing.T) {
	one, two := publicPEM(t), publicPEM(t)
	if keys, err := router.ParseTopologyKeys([]byte("# old\n" + one + "\n# new\n" + two + "\n")); err != nil || len(keys) != 2 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	for name, text := range map[string]string{
		"none":           "# no key\n",
		"cut short":      one + two[:len(two)/2],
		"the first":      one[:len(one)/2] + "\n" + two,
		"no good begin":  one + strings.Replace(two, "-----BEGIN", "----BEGIN", 1),
		"not base64":     one + strings.Replace(two, "\nM", "\n!", 1),
		"another kind":   one + strings.ReplaceAll(two, "PUBLIC KEY", "PRIVATE KEY")[:30],
		"an end is lost": one + strings.Replace(two, "-----END", "", 1),
	} {
		var bad *router.ConfigError
		if keys, err := router.ParseTopologyKeys([]byte(text)); !errors.As(err, &bad) || bad.Field != "keys" {
			t.Errorf("%s: %d keys, %v", name, len(keys), err)
		}
	}
}

func publicPEM(t testing.TB) string {
	t.Helper()
	public, _ := keyPair(t)
	text, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: text}))
}

// TestAllowedAddresses: a pattern allows hosts, whatever their ports.
func TestAllowedAddresses(t *testing.T) {
	for _, test := range []struct {
		pattern, host string
		allowed       bool
	}{
		{"*", "h", true}, {"*", "10.0.0.1", true}, {"*", "::1", true},
		{"10.0.0.0/8", "10.1.2.3", true}, {"10.0.0.0/8", "11.0.0.1", false}, {"10.0.0.0/8", "::ffff:10.1.2.3", true}, {"10.0.0.0/8", "h10.0.0.1", false},
		{"fd00::/8", "fd00::1", true}, {"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.11", false}, {"::ffff:10.0.0.1", "10.0.0.1", true},
		{"Cache.internal", "cache.INTERNAL", true}, {"cache.internal", "cache.internal.", true}, {"cache.internal", "xcache.internal", false},
		{"*.internal", "a.b.internal", true}, {"*.internal", "internal", false}, {"*.internal", "evil-internal", false}, {"*.internal", "internal.evil", false},
	} {
		p := newPlant()
		publish(t, p.machine("10.9.9.9:6379"), router.Topology{Epoch: 2, Baseline: true, Groups: []router.Group{{Name: "g", Primary: net.JoinHostPort(test.host, "7000")}}})
		own := router.Topology{Epoch: 1, Groups: []router.Group{{Name: "g", Primary: "10.9.9.9:6379"}}}
		var events log
		r, err := router.Open(own, router.Config{Node: p.node, OnEvent: events.add, AllowedAddresses: []string{test.pattern}})
		if err != nil {
			t.Fatal(err)
		}
		var allowed bool
		await(t, "a verdict", func() bool {
			allowed = r.PreviousTopologies() > 0
			return allowed || len(events.rejections()) > 0
		})
		if allowed != test.allowed {
			t.Errorf("%s, %s: allowed %t; %q", test.pattern, test.host, allowed, events.rejections())
		}
		_ = r.Close()
	}
}
