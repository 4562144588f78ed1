package policies

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// What is said to match no key of httplimit.ClientAddr matches none, and what is written in its place does.
func TestVainAddress(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"addr:2001:db8::/64":      "",
		"addr:2001:db8:1:2::/64":  "",
		"addr:::/64":              "", // of ::1
		"addr:10.0.0.1":           "",
		"addr:10.*":               "",
		"addr:*":                  "",
		"addr:2*":                 "",
		"addr:2001:db8:*":         "",
		"addr:2001:db8:1:2::/6*":  "",
		"addr:2001:db8::*":        "", // one network, but one
		"addr:::*":                "",
		"addr:somebody":           "", // an application's own
		"addr:":                   "",
		"adr:2001:db8::1":         "",
		"2001:db8::1":             "",
		"tenant:addr:2001:db8::1": "",
		"addr:2001:db8::1":        oneAddress,
		"addr:::1":                oneAddress,
		"addr:[2001:db8::1]":      oneAddress,
		"addr:[2001:db8::1]:443":  oneAddress,
		"addr:2001:DB8::/64":      oneAddress,
		"addr:2001:db8:0:0::/64":  oneAddress,
		"addr:2001:db8::1/64":     oneAddress,
		"addr:fe80::1%eth0":       oneAddress,
		"addr:::ffff:10.0.0.1":    oneAddress,
		"addr:10.0.0.1:80":        oneAddress,
		"addr:10.0.0.1/32":        oneAddress,
		"addr:2001:db8::1/128":    oneAddress,
		"addr:10.0.0.0/8":         oneNetwork,
		"addr:2001:db8::/32":      oneNetwork,
		"addr:2001:DB8:*":         oneNetwork,
		"addr:2001:0db8:*":        oneNetwork,
		"addr:2001:db8::1*":       oneNetwork,
		"addr:2001:db8:1:2:3:*":   oneNetwork,
		"addr:2001:db8::/32*":     oneNetwork,
		"addr:10.0.0.0/8*":        oneNetwork,
		"addr:10.0.0.1.*":         oneNetwork,
		"addr:010.*":              oneNetwork,
		"addr:::ffff:10.*":        oneNetwork,
	} {
		if got := addressAdvice(entry); got != want {
			t.Errorf("%s: %q, want %q", entry, got, want)
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 20_000 { // all that a key can begin with
		var bytes [16]byte
		for i := range bytes {
			bytes[i] = byte(random.IntN(256)) >> random.IntN(8) * byte(random.IntN(2)) // many zeros, and small numbers
		}
		addr := netip.AddrFrom16(bytes)
		if random.IntN(4) == 0 {
			addr = netip.AddrFrom4([4]byte(bytes[:4]))
		}
		key := httplimit.AddrKey(addr)
		for n := range len(key) + 1 {
			if advice := addressAdvice(key[:n] + "*"); advice != "" {
				t.Fatalf("%s* matches %s, and is said to match none", key[:n], key)
			}
		}
		if advice := addressAdvice(key); advice != "" {
			t.Fatalf("%s is said to match none", key)
		}
	}
}
