package router

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/backend/control"
)

// ErrTopologyUntrusted is in the chain of an error about a topology that a server holds and this process doesn't take over:
// it has no valid signature, or names addresses that are neither known here nor allowed. Calls continue as before.
var ErrTopologyUntrusted = errors.New("the published topology is not trusted")

// MaxEpochJump is how far the epoch of a new topology may be above the one in force. It keeps mistakes, and attackers with
// write access to a server, from using up the epochs: there is always a larger one to take a topology back.
const MaxEpochJump = 1_000_000

// signedPrefix keeps a signature from meaning anything else.
const signedPrefix = "sluice topology 1\n"

// signed is what a signature covers: the topology and those before it, without signatures, whatever the layout of a file.
func (t Topology) signed() []byte {
	t.Signature = nil
	for p := &t; p.Previous != nil; p = p.Previous {
		previous := *p.Previous
		previous.Signature = nil
		p.Previous = &previous
	}
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // every field has a JSON form
	}
	return append([]byte(signedPrefix), text...)
}

// Sign returns the topology with a signature over all of its fields. It refuses a topology or a key that is not valid.
func (t Topology) Sign(key ed25519.PrivateKey) (Topology, error) {
	if err := t.Validate(); err != nil {
		return Topology{}, err
	}
	if len(key) != ed25519.PrivateKeySize {
		return Topology{}, &ConfigError{
			Field: "key", Value: fmt.Sprintf("%d bytes", len(key)), Bound: fmt.Sprintf("must be an Ed25519 key of %d bytes", ed25519.PrivateKeySize),
		}
	}
	t.Signature = ed25519.Sign(key, t.signed())
	return t, nil
}

// Verify returns nil if the topology was signed as it is with one of some keys, and a [*ConfigError] otherwise.
func (t Topology) Verify(keys ...ed25519.PublicKey) error {
	text := t.signed()
	for _, key := range keys {
		if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, text, t.Signature) {
			return nil
		}
	}
	value := "none"
	if len(t.Signature) > 0 {
		value = fmt.Sprintf("%d bytes", len(t.Signature))
	}
	return &ConfigError{Field: "signature", Value: value, Bound: fmt.Sprintf("must be by one of %d keys over the topology as it is", len(keys))}
}

// ParseTopologyKeys reads public keys for [Config.TopologyKeys], in PEM as "throttlectl topology keygen" and openssl write it. It
// refuses a text without a key or with a block that can't be read.
func ParseTopologyKeys(text []byte) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	blocks := max(bytes.Count(text, []byte("-----BEGIN")), bytes.Count(text, []byte("-----END")))
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		key, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return nil, &ConfigError{Field: "keys", Value: block.Type, Bound: "must be public keys of Ed25519 in PEM", Err: err}
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, &ConfigError{Field: "keys", Value: "none", Bound: "must be public keys of Ed25519 in PEM"}
	}
	if len(keys) != blocks { // package pem skips blocks that it can't read
		return nil, &ConfigError{Field: "keys", Value: fmt.Sprintf("%d of %d blocks", len(keys), blocks), Bound: "must be public keys of Ed25519 in PEM, each of them whole"}
	}
	return keys, nil
}

// trustedTopology returns the topology of an announcement if this process may take it over from a server.
func (r *Router) trustedTopology(inForce *routingTable, there control.Announcement) (Topology, error) {
	t, err := ParseTopology([]byte(there.Text))
	if err != nil {
		return Topology{}, err
	}
	if int64(t.Epoch) != there.Version || t.Digest() != there.Digest {
		return Topology{}, &ConfigError{
			Field: "topology", Value: fmt.Sprintf("epoch %d", t.Epoch), Bound: fmt.Sprintf("must be of epoch %d, as which it is published", there.Version),
		}
	}
	var own []endpoint
	for _, p := range inForce.placements() {
		own = append(own, p.topology.endpoints()...)
	}
	return t, errors.Join(r.cfg.checkTrust(own, &t), checkJump(inForce, &t))
}

// CheckPublished returns nil if a process with this configuration and a topology of its own may take over another one from a
// server, and otherwise a [*ConfigError], with [ErrTopologyUntrusted] in its chain. It doesn't compare the epochs.
func (c Config) CheckPublished(own, published Topology) error {
	return errors.Join(c.validateTrust(), c.checkTrust(own.endpoints(), &published))
}

// checkTrust refuses a topology that is not signed where it must be, or that names servers which are neither known nor allowed.
func (c *Config) checkTrust(own []endpoint, t *Topology) error {
	if len(c.TopologyKeys) > 0 {
		if err := t.Verify(c.TopologyKeys...); err != nil {
			return errors.Join(ErrTopologyUntrusted, err)
		}
		if len(c.AllowedAddresses) == 0 {
			return nil
		}
	}
	known := make(map[endpoint]bool, len(own))
	for _, p := range own {
		known[p] = true
	}
	for _, p := range t.endpoints() {
		if !known[p] && !allows(c.AllowedAddresses, p.address) {
			return &ConfigError{Field: "topology: address", Value: strconv.Quote(p.address), Err: ErrTopologyUntrusted, Bound: fmt.Sprintf(
				"must be what this process knows from its own topology as %s, or allowed by AllowedAddresses, or the topology (epoch %d) "+
					"signed with one of TopologyKeys", p.role, t.Epoch)}
		}
	}
	return nil
}

// checkJump refuses an epoch that is too far above the one in force.
func checkJump(inForce *routingTable, t *Topology) error {
	if most := inForce.topology.Epoch + MaxEpochJump; inForce.topology.Epoch > 0 && t.Epoch > most {
		return &ConfigError{Field: "epoch", Value: strconv.FormatUint(t.Epoch, 10), Bound: fmt.Sprintf(
			"must be at most %d, which is %d above the one in force", most, MaxEpochJump)}
	}
	return nil
}

// canonical is the one spelling of an address.
func canonical(address string) string {
	if spelled, ok := new(validator).address("", address); ok {
		return spelled
	}
	return address
}

// allows reports whether one of some patterns allows an address, whatever its port.
func allows(patterns []string, address string) bool {
	host, _, err := net.SplitHostPort(canonical(address))
	if err != nil {
		return false
	}
	ip, notIP := netip.ParseAddr(host)
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, err := netip.ParsePrefix(pattern); err == nil {
			return notIP == nil && prefix.Contains(ip)
		}
		if one, err := netip.ParseAddr(pattern); err == nil {
			return notIP == nil && one.Unmap() == ip
		}
		pattern = strings.ToLower(pattern)
		if suffix, ok := strings.CutPrefix(pattern, "*"); ok { // of "*" it is empty
			return strings.HasSuffix(host, suffix) && (suffix == "" || notIP != nil)
		}
		return pattern == host
	})
}

// validateTrust checks the fields that decide which published topologies are taken over.
func (c *Config) validateTrust() error {
	var errs []error
	for i, key := range c.TopologyKeys {
		if len(key) != ed25519.PublicKeySize {
			errs = append(errs, &ConfigError{Field: fmt.Sprintf("TopologyKeys[%d]", i), Value: fmt.Sprintf("%d bytes", len(key)),
				Bound: fmt.Sprintf("must be an Ed25519 key of %d bytes", ed25519.PublicKeySize)})
		}
	}
	for i, pattern := range c.AllowedAddresses {
		prefix, notPrefix := netip.ParsePrefix(pattern)
		_, notIP := netip.ParseAddr(pattern)
		name := strings.TrimPrefix(pattern, "*.")
		isName := validHost.MatchString(name) && !strings.HasSuffix(name, ".") && strings.Trim(name, "0123456789.") != ""
		if pattern != "*" && notIP != nil && !isName && (notPrefix != nil || prefix.Addr().Is4In6()) { // IPv4 is never matched in IPv6
			errs = append(errs, &ConfigError{Field: fmt.Sprintf("AllowedAddresses[%d]", i), Value: strconv.Quote(pattern),
				Bound: `must be a host or "*." and a domain, without a dot at the end, an IP address, a prefix such as 10.0.0.0/8, or "*" for any`})
		}
	}
	return errors.Join(errs...)
}
