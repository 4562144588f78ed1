package httplimit

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// errRemoteAddr is for a server that doesn't listen on TCP or UDP.
var errRemoteAddr = errors.New("httplimit: RemoteAddr is not an IP address")

// ClientAddr returns the [AddrKey] of the client: the peer of the connection (RemoteAddr). Behind proxies pass their addresses
// as trusted: if the peer is one of them, the client is the rightmost address in X-Forwarded-For that is not trusted, because
// each proxy appends the address of its peer. Addresses left of it are claims of the client, and ignored. A hop that is not an
// address ends the search: the request then counts against the last certain address, the proxy's.
//
// RemoteAddr must be the peer's: a middleware in front that sets it by a header, as chi's RealIP does, lets clients choose their
// address. Trusted proxies must set or append to the field; a proxy that forwards a client's own field unchanged lets the
// client choose its address. A server behind a Unix socket has no peer address, and needs its own KeyFunc. ClientAddr panics if
// a prefix is invalid or trusts every address (0 bits), because then the client's claim would decide.
func ClientAddr(trusted ...netip.Prefix) KeyFunc { return AddrConfig{Trusted: trusted}.ClientAddr() }

// ClientAddrFrom is [ClientAddr] for proxies that write another header field than X-Forwarded-For:
//
//	ClientAddrFrom("Forwarded", trusted...)         // RFC 7239; as in X-Forwarded-For, each proxy appends
//	ClientAddrFrom("X-Real-IP", trusted...)         // nginx with proxy_set_header X-Real-IP $remote_addr
//	ClientAddrFrom("CF-Connecting-IP", trusted...)  // Cloudflare, whose published prefixes are the trusted ones
//
// See [AddrConfig.Header]. No function reads two fields, because the client controls those that the proxies don't write.
func ClientAddrFrom(header string, trusted ...netip.Prefix) KeyFunc {
	return AddrConfig{Trusted: trusted, Header: header}.ClientAddr()
}

// AddrConfig configures how addresses identify clients. The zero value is that of [ClientAddr].
type AddrConfig struct {
	// Trusted are the addresses of trusted proxies, see ClientAddr.
	Trusted []netip.Prefix

	// Header is the field in which trusted proxies write addresses. X-Forwarded-For and Forwarded are lists. Any other, such as
	// X-Real-IP or CF-Connecting-IP, is the client's address alone: it is read only if the peer is trusted, and trusted proxies
	// must replace what a client sends. If it is missing, sent twice or no address, the request counts against the proxy. Where
	// a trusted proxy passes on a field that another one writes, no client must reach it but through that one. Empty:
	// X-Forwarded-For.
	Header string

	// IPv6Prefix is how many leading bits of an IPv6 address identify a client, from 16 to 128. Zero: 64.
	//
	// A network gives a subscriber at least a /64; most homes get a /56, most companies a /48, and hosts in a data centre a /64
	// or a single address. By /64 a subscriber with a /48 has 65,536 quotas; by /48 many subscribers of a network that assigns
	// less share one. With 64, a second limit on the /48, by Also, bounds both. All processes must have the same.
	IPv6Prefix int
}

// ClientAddr returns the KeyFunc of a configuration. It panics if a trusted prefix is invalid or trusts every address, or if
// Header or IPv6Prefix is invalid.
func (c AddrConfig) ClientAddr() KeyFunc {
	switch field := http.CanonicalHeaderKey(c.Header); {
	case field == "" || field == "X-Forwarded-For":
		return c.clientAddr("X-Forwarded-For", lastInList, parseHop)
	case field == "Forwarded":
		return c.clientAddr(field, lastInQuotedList, parseForwarded)
	case !consists(field, isFieldName):
		panic("httplimit: Header = " + strconv.Quote(c.Header) + ": must be the name of a header field")
	default:
		return c.clientAddr(field, nil, parseHop)
	}
}

func isFieldName(b byte) bool {
	return b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' || b == '_'
}

// AddrKey is [AddrConfig.AddrKey] of the zero AddrConfig.
func AddrKey(addr netip.Addr) string { return AddrConfig{}.AddrKey(addr) }

// AddrKey returns the key that ClientAddr gives an address, for Peek, Reset and lists: "addr:192.0.2.1", or of an IPv6 address its
// prefix, "addr:2001:db8:1:2::/64". Another spelling, such as "addr:2001:db8::1", matches no key. Zones are dropped. The key of
// the zero Addr is empty.
//
// IPv4 in IPv6 is IPv4, and so are IPv6 addresses that represent IPv4 addresses: those of a NAT64 with the prefix
// 64:ff9b::/96, or all its clients would share one quota; of 6to4 (2002::/16), or one host would have 65,536; and of Teredo
// (2001::/32), whose clients share the prefix of their server. A 6to4 or Teredo address of an IPv4 address that is not global,
// such as 10.0.0.1, stays IPv6, or it would match lists of private addresses.
func (c AddrConfig) AddrKey(addr netip.Addr) string {
	if !addr.Is4() { // which stands for itself
		addr = standsFor(plain(addr))
	}
	if !addr.IsValid() {
		return ""
	}
	var room [64]byte
	key := append(room[:0], "addr:"...)
	if addr.Is4() {
		return string(addr.AppendTo(key))
	}
	prefix, err := addr.Prefix(c.bits())
	if err != nil {
		panic("httplimit: " + err.Error()) // bits has checked it
	}
	return string(prefix.AppendTo(key))
}

func (c AddrConfig) bits() int {
	switch {
	case c.IPv6Prefix == 0:
		return 64
	case c.IPv6Prefix < 16 || c.IPv6Prefix > 128:
		panic("httplimit: IPv6Prefix = " + strconv.Itoa(c.IPv6Prefix) + ": must be from 16 to 128, or 0 for 64")
	}
	return c.IPv6Prefix
}

// clientAddr visits the hops in the lines of a field from the right; last splits one off. If last is nil, the field is one address.
func (c AddrConfig) clientAddr(field string, last func(string) (rest, hop string, more bool),
	parse func(string) (netip.Addr, bool)) KeyFunc {
	c.IPv6Prefix = c.bits()
	proxies := make([]netip.Prefix, len(c.Trusted))
	for i, p := range c.Trusted {
		if addr := plain(p.Addr()); addr.BitLen() < p.Addr().BitLen() && p.Bits() >= 96 {
			p = netip.PrefixFrom(addr, p.Bits()-96)
		}
		if p.Bits() <= 0 {
			panic("httplimit: trusted prefix " + p.String() + " is invalid or holds every address")
		}
		proxies[i] = p
	}
	isProxy := func(addr netip.Addr) bool {
		for _, p := range proxies {
			if p.Contains(addr) {
				return true
			}
		}
		return false
	}
	return func(r *http.Request) (string, error) {
		addr, ok := parseHop(r.RemoteAddr)
		if !ok {
			return "", errRemoteAddr
		}
		if !isProxy(addr) {
			return c.AddrKey(addr), nil
		}
		lines := r.Header[field]
		if last == nil {
			if len(lines) == 1 {
				if client, ok := parse(lines[0]); ok {
					addr = client
				}
			}
			return c.AddrKey(addr), nil
		}
		for i := len(lines) - 1; i >= 0; i-- {
			for rest, more := lines[i], true; more; {
				var hop string
				rest, hop, more = last(rest)
				caller, ok := parse(hop)
				if !ok {
					return c.AddrKey(addr), nil
				}
				if addr = caller; !isProxy(addr) {
					return c.AddrKey(addr), nil
				}
			}
		}
		return c.AddrKey(addr), nil
	}
}

// lastInList splits the last element off a list, and reports whether there are more.
func lastInList(list string) (rest, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	return list[:max(i, 0)], list[i+1:], i >= 0
}

// lastInQuotedList is lastInList for elements that may hold quoted strings. It reads from the right, so that nothing that a client
// puts on the left, such as an open quote, changes how a proxy's element is read.
func lastInQuotedList(list string) (rest, last string, more bool) {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch {
		case list[i] == '"' && !escaped(list, i):
			quoted = !quoted
		case list[i] == ',' && !quoted:
			return list[:i], list[i+1:], true
		}
	}
	return "", list, false
}

// escaped reports whether an odd number of backslashes stands before s[i].
func escaped(s string, i int) bool {
	before := strings.TrimRight(s[:i], `\`)
	return (i-len(before))%2 == 1
}

// parseForwarded reads the for parameter of one element of Forwarded, such as
// `for="[2001:db8::1]:4711";proto=https`.
func parseForwarded(element string) (netip.Addr, bool) {
	node, found := "", false
	for rest, more := element, true; more; {
		var pair string
		pair, rest, more = firstPair(rest)
		name, value, _ := strings.Cut(pair, "=")
		if !strings.EqualFold(strings.Trim(name, " \t"), "for") {
			continue
		}
		if found { // ambiguous
			return netip.Addr{}, false
		}
		node, found = strings.Trim(value, " \t"), true
	}
	if len(node) > 1 && node[0] == '"' && node[len(node)-1] == '"' {
		node = node[1 : len(node)-1] // addresses contain nothing to escape
	}
	return parseHop(node)
}

// firstPair splits the first of some pairs off at a semicolon outside of quotes.
func firstPair(pairs string) (pair, rest string, more bool) {
	quoted := false
	for i := range len(pairs) {
		switch {
		case pairs[i] == '"' && !escaped(pairs, i):
			quoted = !quoted
		case pairs[i] == ';' && !quoted:
			return pairs[:i], pairs[i+1:], true
		}
	}
	return pairs, "", false
}

// parseHop reads an address with or without a port: "192.0.2.1:80", "[2001:db8::1]:80", "[2001:db8::1]",
// "2001:db8::1".
func parseHop(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if hostPort, err := netip.ParseAddrPort(s); err == nil {
		return plain(hostPort.Addr()), true
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok && strings.Contains(inner, ":") {
			s = inner
		}
	}
	addr, err := netip.ParseAddr(s)
	return plain(addr), err == nil
}

// standsFor returns the IPv4 address in an address of 6to4 (RFC 3056) or Teredo (RFC 4380), if it is global, and otherwise the
// address itself. It must not decide trust: a host can choose the IPv4 address in its own address.
func standsFor(addr netip.Addr) netip.Addr {
	if !addr.Is6() {
		return addr
	}
	all := addr.As16()
	host := addr
	switch {
	case sixToFour.Contains(addr):
		host = netip.AddrFrom4([4]byte(all[2:6]))
	case teredo.Contains(addr):
		host = netip.AddrFrom4([4]byte{^all[12], ^all[13], ^all[14], ^all[15]})
	}
	if isGlobal(host) {
		return host
	}
	return addr
}

var (
	sixToFour = netip.MustParsePrefix("2002::/16")
	teredo    = netip.MustParsePrefix("2001::/32")
	shared    = netip.MustParsePrefix("100.64.0.0/10") // of carriers (RFC 6598)
)

// isGlobal reports whether an address can be that of a host on the Internet.
func isGlobal(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && !shared.Contains(addr) && !(addr.Is4() && addr.As4()[0] == 0)
}

// nat64 is the prefix of a NAT64 (RFC 6052), with the IPv4 address in the last 32 bits.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// plain normalizes an address: IPv4 instead of IPv4 in IPv6, no zone.
func plain(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		all := addr.As16()
		return netip.AddrFrom4([4]byte(all[12:]))
	}
	return addr
}
