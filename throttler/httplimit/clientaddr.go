package httplimit

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
)

// errRemoteAddr is what a server that doesn't listen on TCP or UDP gets.
var errRemoteAddr = errors.New("httplimit: RemoteAddr is not an IP address")

// ClientAddr is the address of the client, as [AddrKey]: the peer of the connection (RemoteAddr). Behind proxies
// name theirs as trusted: if the peer is one of them, the client is the rightmost address in X-Forwarded-For that
// is not, for each proxy appends the address that it was called from. What stands left of it is what the client
// claims, and ignored. A hop that is no address ends the search too: the request then counts against the last
// address that is certain, the proxy's.
//
// Trusted proxies must set or append to the field themselves; one that hands a client's own field on unchanged lets
// the client choose its address. A server behind a Unix socket has no peer address, and needs a KeyFunc of its own.
// ClientAddr panics if a prefix is invalid or trusts everybody (0 bits), as then the client's claim would decide.
func ClientAddr(trusted ...netip.Prefix) KeyFunc {
	return clientAddr("X-Forwarded-For", lastInList, parseHop, trusted)
}

// ForwardedClientAddr is [ClientAddr] for proxies that write Forwarded (RFC 7239) in place of X-Forwarded-For. There
// is none that reads both: the field that the proxies don't write is the client's.
func ForwardedClientAddr(trusted ...netip.Prefix) KeyFunc {
	return clientAddr("Forwarded", lastInQuotedList, parseForwarded, trusted)
}

// AddrKey is the key that [ClientAddr] gives an address, to look at its counts, reset them or put it on a list (Allow and Deny
// of throttler.Config, and a Registry's), where another spelling, such as "addr:2001:db8::1", lists nobody: "addr:192.0.2.1", or
// "addr:2001:db8:1:2::/64", because an IPv6 client has a whole /64 to itself. IPv4 in IPv6 is IPv4, and so is what a NAT64
// makes of it with the prefix 64:ff9b::/96, or all its clients would have one quota; zones are dropped. It is empty for the
// zero Addr.
func AddrKey(addr netip.Addr) string {
	addr = plain(addr)
	if !addr.Is6() {
		if !addr.IsValid() {
			return ""
		}
		return "addr:" + addr.String()
	}
	prefix, _ := addr.Prefix(64) // fails for more bits than an address has
	return "addr:" + prefix.String()
}

// clientAddr walks over the hops in the lines of a field from the right; last splits one off.
func clientAddr(field string, last func(string) (rest, hop string, more bool),
	parse func(string) (netip.Addr, bool), trusted []netip.Prefix) KeyFunc {
	proxies := make([]netip.Prefix, len(trusted))
	for i, p := range trusted {
		if addr := plain(p.Addr()); addr.BitLen() < p.Addr().BitLen() && p.Bits() >= 96 {
			p = netip.PrefixFrom(addr, p.Bits()-96)
		}
		if p.Bits() <= 0 {
			panic("httplimit: trusted prefix " + p.String() + " is invalid or holds everybody")
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
			return AddrKey(addr), nil
		}
		lines := r.Header[field]
		for i := len(lines) - 1; i >= 0; i-- {
			for rest, more := lines[i], true; more; {
				var hop string
				rest, hop, more = last(rest)
				caller, ok := parse(hop)
				if !ok {
					return AddrKey(addr), nil
				}
				if addr = caller; !isProxy(addr) {
					return AddrKey(addr), nil
				}
			}
		}
		return AddrKey(addr), nil
	}
}

// lastInList splits the last element off a list; more is whether there are others.
func lastInList(list string) (rest, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	return list[:max(i, 0)], list[i+1:], i >= 0
}

// lastInQuotedList is lastInList for elements that may hold quoted strings. It reads from the right, so that nothing
// that a client has put at the left, such as a quote without an end, changes how a proxy's element is read.
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
		if found { // whom to believe?
			return netip.Addr{}, false
		}
		node, found = strings.Trim(value, " \t"), true
	}
	if len(node) > 1 && node[0] == '"' && node[len(node)-1] == '"' {
		node = node[1 : len(node)-1] // no address holds what would be escaped
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

// nat64 is where a NAT64 puts the IPv4 addresses of clients (RFC 6052): in the last 32 bits.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// plain is the one form of an address: IPv4 not in IPv6, no zone.
func plain(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		all := addr.As16()
		return netip.AddrFrom4([4]byte(all[12:]))
	}
	return addr
}
