package httplimit_test

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// proxies are 10.0.0.0/8, 192.0.2.0/24 as IPv4 in IPv6, and fd00::/8.
var proxies = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::ffff:192.0.2.0/120"), netip.MustParsePrefix("fd00::/8"),
	netip.MustParsePrefix("64:ff9b::198.18.0.0/120"),
}

func request(remote string, header http.Header) *http.Request {
	if header == nil {
		header = http.Header{}
	}
	return &http.Request{RemoteAddr: remote, Header: header}
}

func TestClientAddrOfThePeer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ remote, want string }{
		{"203.0.113.7:4711", "addr:203.0.113.7"},
		{"203.0.113.7", "addr:203.0.113.7"},
		{"[2001:db8:1:2:3:4:5:6]:4711", "addr:2001:db8:1:2::/64"},
		{"[2001:db8:1:2::ffff]:1", "addr:2001:db8:1:2::/64"},
		{"[2001:db8:1:3::]:1", "addr:2001:db8:1:3::/64"},
		{"2001:db8:1:2::1", "addr:2001:db8:1:2::/64"},
		{"[2001:db8:1:2::1]", "addr:2001:db8:1:2::/64"},
		{"[fe80::1%eth0]:80", "addr:fe80::/64"},
		{"[::ffff:203.0.113.7]:80", "addr:203.0.113.7"},
		{"[::ffff:203.0.113.7%eth0]:80", "addr:203.0.113.7"},
		{"[::1]:80", "addr:::/64"},
		{"[64:ff9b::203.0.113.7]:80", "addr:203.0.113.7"}, // NAT64
		{"[64:ff9b::cb00:7107%eth0]:80", "addr:203.0.113.7"},
		{"[64:ff9b::1:cb00:7107]:80", "addr:64:ff9b::/64"}, // beyond the /96
		{"[64:ff9b:1::203.0.113.7]:80", "addr:64:ff9b:1::/64"},
		{"", ""}, {"@", ""}, {"/run/http.sock", ""}, {"localhost:80", ""}, {"203.0.113.7:x", ""},
		{"[203.0.113.7]", ""}, {"203.0.113.7:99999", ""}, {"1.2.3", ""}, {"[]", ""}, {":80", ""},
	} {
		header := http.Header{ // which nobody was trusted to write
			"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"}, "X-Real-Ip": {"198.51.100.1"},
		}
		for name, key := range map[string]httplimit.KeyFunc{
			"no proxies": httplimit.ClientAddr(), "not a proxy": httplimit.ClientAddr(proxies...),
			"Forwarded": httplimit.ClientAddrFrom("Forwarded", proxies...), "X-Real-IP": realIP(proxies...),
		} {
			got, err := key(request(test.remote, header))
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("%s, %q: %q, %v, want %q", name, test.remote, got, err, test.want)
			}
			if errors.Is(err, httplimit.ErrNoKey) {
				t.Errorf("%s, %q: %v: FirstOf would pass it by", name, test.remote, err)
			}
		}
	}
}

func TestClientAddrBehindProxies(t *testing.T) {
	t.Parallel()
	const proxy = "10.0.0.1:4711"
	for _, test := range []struct {
		name, remote string
		lines        []string
		want         string
	}{
		{"no header", proxy, nil, "addr:10.0.0.1"},
		{"one hop", proxy, []string{"203.0.113.7"}, "addr:203.0.113.7"},
		{"what the client claims is left of it", proxy, []string{"198.51.100.1, 203.0.113.7"}, "addr:203.0.113.7"},
		{"the client claims to be a proxy", proxy, []string{"198.51.100.1, 10.0.0.9, 203.0.113.7"}, "addr:203.0.113.7"},
		{"two proxies", proxy, []string{"198.51.100.1, 203.0.113.7, 10.0.0.2"}, "addr:203.0.113.7"},
		{"lines are joined", proxy, []string{"198.51.100.1", "203.0.113.7", "10.0.0.3,10.0.0.2"}, "addr:203.0.113.7"},
		{"all are proxies", proxy, []string{"10.0.0.4, 10.0.0.3", "10.0.0.2"}, "addr:10.0.0.4"},
		{"IPv6", proxy, []string{"2001:db8:1:2:3:4:5:6"}, "addr:2001:db8:1:2::/64"},
		{"IPv6 with a port", proxy, []string{"[2001:db8:1:2::1]:80"}, "addr:2001:db8:1:2::/64"},
		{"IPv4 with a port", proxy, []string{"203.0.113.7:80"}, "addr:203.0.113.7"},
		{"IPv4 in IPv6", proxy, []string{"::ffff:203.0.113.7"}, "addr:203.0.113.7"},
		{"a proxy's IPv4 in IPv6", "[::ffff:10.0.0.1]:80", []string{"203.0.113.7, ::ffff:10.0.0.2"}, "addr:203.0.113.7"},
		{"trusted as IPv4 in IPv6", "192.0.2.9:80", []string{"203.0.113.7"}, "addr:203.0.113.7"},
		{"beyond that prefix", "192.0.3.9:80", []string{"203.0.113.7"}, "addr:192.0.3.9"},
		{"a proxy with a zone", "[fd00::1%eth0]:80", []string{"203.0.113.7, fd00::2%eth1"}, "addr:203.0.113.7"},
		{"behind NAT64", proxy, []string{"203.0.113.7, 64:ff9b::198.51.100.1"}, "addr:198.51.100.1"},
		{"a proxy behind NAT64", "[64:ff9b::10.0.0.1]:80", []string{"203.0.113.7, 64:ff9b::10.0.0.2"}, "addr:203.0.113.7"},
		{"trusted as behind NAT64", "198.18.0.9:80", []string{"203.0.113.7, 64:ff9b::198.18.0.8"}, "addr:203.0.113.7"},
		{"beyond that prefix, too", "198.18.1.9:80", []string{"203.0.113.7"}, "addr:198.18.1.9"},
		{"spaces and tabs", proxy, []string{"  198.51.100.1 ,\t203.0.113.7 \t"}, "addr:203.0.113.7"},
		{"a malformed hop", proxy, []string{"203.0.113.7, unknown"}, "addr:10.0.0.1"},
		{"a malformed hop behind a proxy", proxy, []string{"203.0.113.7, nonsense, 10.0.0.2"}, "addr:10.0.0.2"},
		{"what the client malformed is not read", proxy, []string{"\x00,,;;\"", "203.0.113.7"}, "addr:203.0.113.7"},
		{"an empty hop", proxy, []string{"203.0.113.7,"}, "addr:10.0.0.1"},
		{"an empty line", proxy, []string{"203.0.113.7", ""}, "addr:10.0.0.1"},
		{"only commas", proxy, []string{",,,"}, "addr:10.0.0.1"},
	} {
		got, err := httplimit.ClientAddr(proxies...)(request(test.remote, http.Header{
			"X-Forwarded-For": test.lines, "Forwarded": {"for=198.51.100.9"},
		}))
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

func TestClientAddrFromForwarded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"no header", nil, "addr:10.0.0.1"},
		{"one hop", []string{"for=203.0.113.7"}, "addr:203.0.113.7"},
		{"quoted with a port", []string{`for="203.0.113.7:4711"`}, "addr:203.0.113.7"},
		{"IPv6", []string{`for="[2001:db8:1:2::17]:4711"`}, "addr:2001:db8:1:2::/64"},
		{"names in any case, any order", []string{`proto=https;By=10.0.0.1 ; FOR = 203.0.113.7;host="a,b;for=198.51.100.1"`},
			"addr:203.0.113.7"},
		{"what the client claims is left of it", []string{"for=198.51.100.1, for=203.0.113.7"}, "addr:203.0.113.7"},
		{"two proxies", []string{`for=198.51.100.1, for=203.0.113.7;by=x`, `for="10.0.0.3", for=10.0.0.2`},
			"addr:203.0.113.7"},
		{"the client opens a quote", []string{`for="198.51.100.1, for=203.0.113.7`}, "addr:203.0.113.7"},
		{"the client opens a quote before a quoted hop", []string{`for="x, for="[2001:db8:1:2::1]"`},
			"addr:2001:db8:1:2::/64"},
		{"a quoted value after a space", []string{`for= "203.0.113.7"`}, "addr:203.0.113.7"},
		{"a quote within a quote", []string{`for=203.0.113.7;host="a\"b, for=198.51.100.1"`}, "addr:203.0.113.7"},
		{"and a comma before it", []string{`for=203.0.113.7;host="a, for=198.51.100.1\"b"`}, "addr:203.0.113.7"},
		{"and a semicolon after it", []string{`for=203.0.113.7;host="a\";for=198.51.100.1"`}, "addr:203.0.113.7"},
		{"a backslash at the end of a quote", []string{`for=198.51.100.1, for=203.0.113.7;host="a\\"`},
			"addr:203.0.113.7"},
		{"unknown", []string{"for=203.0.113.7, for=unknown"}, "addr:10.0.0.1"},
		{"hidden", []string{"for=203.0.113.7, for=_SEVKISEK"}, "addr:10.0.0.1"},
		{"no for", []string{"for=203.0.113.7, proto=https"}, "addr:10.0.0.1"},
		{"two fors", []string{"for=203.0.113.7;for=198.51.100.1"}, "addr:10.0.0.1"},
		{"for without a value", []string{"for"}, "addr:10.0.0.1"},
		{"one quote", []string{`for="`}, "addr:10.0.0.1"},
		{"empty", []string{""}, "addr:10.0.0.1"},
	} {
		got, err := httplimit.ClientAddrFrom("Forwarded", proxies...)(request("10.0.0.1:80", http.Header{
			"Forwarded": test.lines, "X-Forwarded-For": {"198.51.100.9"},
		}))
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

func realIP(trusted ...netip.Prefix) httplimit.KeyFunc {
	return httplimit.ClientAddrFrom("x-real-ip", trusted...)
}

// A field with one address counts only from a trusted peer, and only if it is clear.
func TestClientAddrFromOneAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, remote string
		lines        []string
		want         string
	}{
		{"one", "10.0.0.1:80", []string{"203.0.113.7"}, "addr:203.0.113.7"},
		{"with spaces and a port", "10.0.0.1:80", []string{" 203.0.113.7:4711 "}, "addr:203.0.113.7"},
		{"IPv6", "10.0.0.1:80", []string{"2001:db8:1:2::17"}, "addr:2001:db8:1:2::/64"},
		{"a proxy's", "10.0.0.1:80", []string{"10.0.0.9"}, "addr:10.0.0.9"},
		{"none", "10.0.0.1:80", nil, "addr:10.0.0.1"},
		{"empty", "10.0.0.1:80", []string{""}, "addr:10.0.0.1"},
		{"two", "10.0.0.1:80", []string{"203.0.113.7", "203.0.113.7"}, "addr:10.0.0.1"},
		{"a list", "10.0.0.1:80", []string{"198.51.100.1, 203.0.113.7"}, "addr:10.0.0.1"},
		{"no address", "10.0.0.1:80", []string{"unknown"}, "addr:10.0.0.1"},
		{"of a client", "203.0.113.9:80", []string{"203.0.113.7"}, "addr:203.0.113.9"},
		{"of a client as IPv4 in IPv6", "[::ffff:203.0.113.9]:80", []string{"203.0.113.7"}, "addr:203.0.113.9"},
	} {
		for field, key := range map[string]httplimit.KeyFunc{
			"X-Real-Ip": realIP(proxies...), "Cf-Connecting-Ip": httplimit.ClientAddrFrom("CF-Connecting-IP", proxies...),
		} {
			got, err := key(request(test.remote, http.Header{field: test.lines, "X-Forwarded-For": {"198.51.100.9"}}))
			if err != nil || got != test.want {
				t.Errorf("%s, %s: %q, %v, want %q", field, test.name, got, err, test.want)
			}
		}
	}
	r := request("10.0.0.1:80", http.Header{"X-Forwarded-For": {"203.0.113.7"}})
	if got, err := httplimit.ClientAddrFrom("x-forwarded-for", proxies...)(r); err != nil || got != "addr:203.0.113.7" {
		t.Errorf("X-Forwarded-For: %q, %v", got, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name with a space was accepted")
		}
	}()
	httplimit.ClientAddrFrom("X-Real IP")
}

func TestClientAddrRefusesPrefixes(t *testing.T) {
	t.Parallel()
	for _, prefix := range []netip.Prefix{
		{}, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"), netip.MustParsePrefix("::ffff:0.0.0.0/96"),
		netip.MustParsePrefix("64:ff9b::/96"),
		netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 33),
	} {
		for _, make := range []func(...netip.Prefix) httplimit.KeyFunc{httplimit.ClientAddr, realIP} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%v was accepted", prefix)
					}
				}()
				make(append(slices.Clone(proxies), prefix)...)
			}()
		}
	}
}

func TestAddrKey(t *testing.T) {
	t.Parallel()
	if got := httplimit.AddrKey(netip.Addr{}); got != "" {
		t.Errorf("AddrKey of the zero Addr = %q", got)
	}
	addr := netip.MustParseAddr("2001:db8:1:2:3::4")
	if got, err := httplimit.ClientAddr()(request(netip.AddrPortFrom(addr, 80).String(), nil)); err != nil ||
		got != httplimit.AddrKey(addr) {
		t.Errorf("ClientAddr = %q, %v, AddrKey = %q", got, err, httplimit.AddrKey(addr))
	}
}

// FuzzClientAddr: nothing in a header moves a request that comes from no proxy, and behind a proxy only an address
// that stands in the header, or the proxy's own, is the client.
func FuzzClientAddr(f *testing.F) {
	f.Add("203.0.113.7:80", "198.51.100.1, 10.0.0.1", "unknown", `for="[2001:db8::1]:80";by=x, for=_x`)
	f.Add("10.0.0.1:80", "198.51.100.1,,", "10.0.0.2", `for="a\"b, for=1.2.3.4`)
	f.Add("[::ffff:10.0.0.1%x]:80", ",", "\"", `;=,\`)
	f.Add("@", "", "", "")
	f.Fuzz(func(t *testing.T, remote, line1, line2, forwarded string) {
		header := http.Header{"X-Forwarded-For": {line1, line2}, "Forwarded": {forwarded}, "X-Real-Ip": {line1}}
		plain, plainErr := httplimit.ClientAddr()(request(remote, nil))
		if (plainErr == nil) != strings.HasPrefix(plain, "addr:") {
			t.Fatalf("%q: %q, %v", remote, plain, plainErr)
		}
		for name, key := range map[string]httplimit.KeyFunc{
			"ClientAddr": httplimit.ClientAddr(), "Forwarded": httplimit.ClientAddrFrom("Forwarded"), "X-Real-IP": realIP(),
		} {
			if got, err := key(request(remote, header)); got != plain || (err == nil) != (plainErr == nil) {
				t.Fatalf("%s without proxies: %q with headers, %q without", name, got, plain)
			}
		}

		trusted, err := httplimit.ClientAddr(proxies...)(request(remote, header))
		if want := trustedAddr(plain, header.Values("X-Forwarded-For")); trusted != want || (err == nil) != (plainErr == nil) {
			t.Fatalf("ClientAddr behind proxies = %q, %v, want %q", trusted, err, want)
		}
		// Whatever a client puts before what a proxy appends is ignored.
		for _, hop := range []string{"203.0.113.7", `"203.0.113.7:80"`} {
			r := request("10.0.0.1:80", http.Header{"Forwarded": {forwarded + ", for=" + hop + ";proto=https"}})
			if got, err := httplimit.ClientAddrFrom("Forwarded", proxies...)(r); err != nil || got != "addr:203.0.113.7" {
				t.Fatalf("Forwarded %q: %q, %v", r.Header["Forwarded"], got, err)
			}
		}
	})
}

// trustedAddr is ClientAddr in other words: split everything, then look from the right.
func trustedAddr(peer string, lines []string) string {
	isProxy := func(key string) bool {
		addr := strings.TrimPrefix(key, "addr:")
		if prefix, err := netip.ParsePrefix(addr); err == nil {
			return netip.MustParsePrefix("fd00::/8").Contains(prefix.Addr())
		}
		a, err := netip.ParseAddr(addr)
		return err == nil && (a.As4()[0] == 10 || strings.HasPrefix(addr, "192.0.2.") || strings.HasPrefix(addr, "198.18.0."))
	}
	hops := strings.Split(strings.Join(lines, ","), ",")
	for isProxy(peer) && len(hops) > 0 {
		last := strings.Trim(hops[len(hops)-1], " \t")
		hops = hops[:len(hops)-1]
		caller, err := httplimit.ClientAddr()(request(last, nil))
		if err != nil {
			break
		}
		peer = caller
	}
	return peer
}

// Whoever has many IPv6 addresses has one quota for all that are his.
func TestAddrKeyOfOneHost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bits       int
		addr, want string
	}{
		{0, "2001:db8:1:2:3:4:5:6", "addr:2001:db8:1:2::/64"},
		{64, "2001:db8:1:2:3:4:5:6", "addr:2001:db8:1:2::/64"},
		{48, "2001:db8:1:2:3:4:5:6", "addr:2001:db8:1::/48"},
		{56, "2001:db8:1:2ff::1", "addr:2001:db8:1:200::/56"},
		{128, "2001:db8::1", "addr:2001:db8::1/128"},
		{16, "2001:db8::1", "addr:2001::/16"},
		{48, "192.0.2.1", "addr:192.0.2.1"},
		{48, "::ffff:192.0.2.1", "addr:192.0.2.1"},

		{0, "2002:c000:0201::1", "addr:192.0.2.1"}, // 6to4: a /48 for each IPv4 address
		{0, "2002:c000:0201:ffff::1", "addr:192.0.2.1"},
		{128, "2002:c000:0201:ffff:1::", "addr:192.0.2.1"},
		{48, "2002:c000:0201::1%eth0", "addr:192.0.2.1"},
		{0, "2002:0a00:0001::1", "addr:2002:a00:1::/64"}, // 10.0.0.1 is nobody on the Internet, and may be on a list
		{0, "2002:7f00:0001::1", "addr:2002:7f00:1::/64"},
		{0, "2002:6440:0001::1", "addr:2002:6440:1::/64"}, // 100.64.0.1
		{0, "2002::1", "addr:2002::/64"},
		{0, "2003:c000:0201::1", "addr:2003:c000:201::/64"},

		{0, "2001:0:5ef5:79fb:0:59b:3fff:fdfe", "addr:192.0.2.1"}, // Teredo: the client's address with all bits inverted
		{48, "2001:0:5ef5:79fb:8000:1:3fff:fdfe", "addr:192.0.2.1"},
		{0, "2001:0:5ef5:79fb::f5ff:fffe", "addr:2001:0:5ef5:79fb::/64"}, // 10.0.0.1
		{0, "2001:1::1", "addr:2001:1::/64"},

		{0, "64:ff9b::192.0.2.1", "addr:192.0.2.1"},
		{48, "64:ff9b::c000:201", "addr:192.0.2.1"},
		{0, "64:ff9b:1::192.0.2.1", "addr:64:ff9b:1::/64"}, // a NAT64 of one's own (RFC 8215): where the address is isn't known
	} {
		cfg := httplimit.AddrConfig{IPv6Prefix: test.bits}
		addr := netip.MustParseAddr(test.addr)
		if got := cfg.AddrKey(addr); got != test.want {
			t.Errorf("%s by %d: %q, want %q", test.addr, test.bits, got, test.want)
		}
		got, err := cfg.ClientAddr()(request(netip.AddrPortFrom(addr, 80).String(), nil))
		if err != nil || got != test.want {
			t.Errorf("%s by %d: a request has %q, %v, want %q", test.addr, test.bits, got, err, test.want)
		}
	}
	// An address that stands for a trusted one is not trusted.
	key := httplimit.AddrConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}.ClientAddr()
	got, err := key(request("[2002:c000:0201::1]:80", http.Header{"X-Forwarded-For": {"198.51.100.9"}}))
	if err != nil || got != "addr:192.0.2.1" {
		t.Errorf("a 6to4 address of a proxy: %q, %v, want what it claims ignored", got, err)
	}
	for _, bits := range []int{-1, 15, 129} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d bits are accepted", bits)
				}
			}()
			httplimit.AddrConfig{IPv6Prefix: bits}.ClientAddr()
		}()
	}
}
