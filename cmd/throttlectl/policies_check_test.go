package main

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

func TestPoliciesCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, document, stderr string
		code                   int
	}{
		{"policies", tiers, "", exitOK},
		{
			"policies_vain", strings.Replace(tiers, `"tenant:13"`, `"tenant:13", "addr:10.0.*"`, 1),
			"throttlectl: found: 1 warning\n", exitFound,
		},
		{
			"policies_never", strings.NewReplacer(
				`"tenant:13"`, `"tenant:13", "addr:2001:db8::1", "addr:2001:db8:1::/48", "addr:2001:db8::2", "addr:2001:db8::/64"`,
				`"tenant:7"`, `"addr:10.0.0.0/8": "pro", "tenant:7"`,
			).Replace(tiers),
			"throttlectl: found: 3 warning\n", exitFound,
		},
		{
			"policies_refused",
			`{
  "policies": {"free": ["10/1x", "0/1s"], "No": ["1/1s"]},
  "keys": {"tenant:7": "gold"},
  "defaults": "free"
}
`,
			"throttlectl: found: 6 critical\n", exitFound,
		},
	} {
		file := policiesFile(t, test.document)
		for suffix, args := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			got := execute(t, append([]string{"policies", "check", file}, args...)...)
			if got.code != test.code || got.stderr != test.stderr {
				t.Errorf("%s: exit code %d, stderr %q", test.name, got.code, got.stderr)
			}
			if strings.Contains(got.stdout, "tenant") {
				t.Errorf("%s: a key in %s", test.name, got.stdout)
			}
			golden(t, test.name+suffix, got.stdout)
		}
	}
	fail(t, exitFailure, "no such file", "policies", "check", policiesFile(t, tiers)+".not")
	fail(t, exitUsage, "0 arguments: want FILE", "policies", "check")
}

// An entry of allow has no effect where deny matches all that it matches.
func TestPoliciesCheckFindsWhatIsDenied(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		allow, deny string
		vain        bool
	}{
		{"addr:10.0.0.1", "addr:10.0.0.1", true},
		{"addr:10.0.0.1", "addr:10.*", true},
		{"addr:10.1.*", "addr:10.*", true},
		{"addr:10.*", "addr:10.*", true},
		{"a", "*", true},
		{"*", "*", true},
		{"a*", "aa", false},
		{"a*", "aa*", false},
		{"a", "a*", true},
		{"a*", "a", false},
		{"a*", "b*", false},
		{"addr:10.0.0.1", "addr:10.0.0.2", false},
	} {
		file := policiesFile(t, strings.NewReplacer(`"healthcheck", "addr:10.0.*"`, `"`+test.allow+`"`, "tenant:13", test.deny).Replace(tiers))
		want := exitOK
		if test.vain {
			want = exitFound
		}
		got := execute(t, "policies", "check", file)
		if got.code != want || test.vain != strings.Contains(got.stdout, "entries of allow that deny has, too, and denies: 1 (number 1)") {
			t.Errorf("allow %s, deny %s: %+v", test.allow, test.deny, got)
		}
	}
}

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
