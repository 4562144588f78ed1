package policies

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// checkLists finds entries without effect, and names their positions: the entries are keys.
func (d *document) checkLists() (f finding.List) {
	if vain := ineffectiveAllows(d.Allow, d.Deny); len(vain) > 0 {
		f.Add(finding.Warning, "lists", "entries of allow that deny has, too, and denies: "+describePositions(vain),
			"Take them off one list. An entry of deny that ends in a star denies all that begin with it.")
	}
	for _, list := range []struct {
		name    string
		entries []string
	}{{"allow", d.Allow}, {"deny", d.Deny}, {"keys", slices.Sorted(maps.Keys(d.Keys))}} {
		vain := make(map[string][]int) // positions by advice
		for i, entry := range list.entries {
			if advice := addressAdvice(entry); advice != "" {
				vain[advice] = append(vain[advice], i)
			}
		}
		for _, advice := range slices.Sorted(maps.Keys(vain)) {
			what := describePositions(vain[advice])
			if list.name == "keys" { // a map has no positions
				what = strconv.Itoa(len(vain[advice]))
			}
			f.Add(finding.Warning, "addresses",
				"entries of "+list.name+" that match no key which httplimit.ClientAddr makes: "+what, advice)
		}
	}
	return f
}

// describePositions is how many entries there are, and the first ten positions.
func describePositions(places []int) string {
	const most = 10
	var all []string
	for _, i := range places[:min(most, len(places))] {
		all = append(all, strconv.Itoa(i+1))
	}
	if len(places) > most {
		all = append(all, "...")
	}
	return fmt.Sprintf("%d (number %s)", len(places), strings.Join(all, ", "))
}

// ineffectiveAllows are the positions of entries of allow whose keys are all denied.
func ineffectiveAllows(allow, deny []string) (vain []int) {
	whole, starts, lengths := make(map[string]bool), make(map[string]bool), make(map[int]bool)
	for _, entry := range deny {
		whole[entry] = true
		if start, ok := strings.CutSuffix(entry, "*"); ok {
			starts[start], lengths[len(start)] = true, true
		}
	}
	for i, entry := range allow {
		denied, start := whole[entry], strings.TrimSuffix(entry, "*")
		for n := range lengths {
			denied = denied || n <= len(start) && starts[start[:n]]
		}
		if denied {
			vain = append(vain, i)
		}
	}
	return vain
}

const (
	oneAddress = "Write an address as httplimit.AddrKey does: addr:192.0.2.1, and of IPv6 the /64 that a client has to itself, " +
		"addr:2001:db8:1:2::/64 for 2001:db8:1:2::1."
	oneNetwork = "Write a network as what the keys of its addresses begin with, whole groups in lower case and a star: " +
		"addr:10.1.*, addr:2001:db8:1:*."
)

// addressAdvice is how to write an entry about addresses that matches no key of httplimit.ClientAddr; empty if it may match one,
// or is no address: then it may be a key of the application's own.
func addressAdvice(entry string) string {
	text, ok := strings.CutPrefix(entry, "addr:")
	if !ok {
		return ""
	}
	if stem, star := strings.CutSuffix(text, "*"); star {
		if !partOfAddress.MatchString(stem) || startOfAddress.MatchString(stem) {
			return ""
		}
		return oneNetwork
	}
	addr, network, ok := parseAddress(text)
	switch {
	case !ok || httplimit.AddrKey(addr) == entry:
		return ""
	case network:
		return oneNetwork
	}
	return oneAddress
}

// parseAddress reads an address, in brackets or not, with a port or not, or a network of several clients.
func parseAddress(text string) (addr netip.Addr, network, ok bool) {
	if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return addr, false, true
	}
	if peer, err := netip.ParseAddrPort(text); err == nil {
		return peer.Addr(), false, true
	}
	its, err := netip.ParsePrefix(text)
	addr = its.Addr()
	client := its.Bits() == addr.BitLen() || addr.Is6() && its.Bits() >= 64
	return addr, !client, err == nil
}

var (
	partOfAddress = regexp.MustCompile(`^[0-9A-Fa-f]*[.:/][0-9A-Fa-f.:/]*$`)

	// startOfAddress matches what the key of an address can begin with: IPv4, or the first four groups of IPv6 and ::/64. Zeros at
	// the end of the four are part of the ::; a run of zeros within them is never the longest, so it is written out.
	startOfAddress = func() *regexp.Regexp {
		const octet, group, end = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`, `(0|[1-9a-f][0-9a-f]{0,3})`, `::(/(64?)?)?`
		const v4, v6 = `(` + octet + `\.){0,3}` + octet + `?`, group + `(:` + group + `){0,3}(:|` + end + `)?|:|` + end
		return regexp.MustCompile(`^(` + v4 + `|` + v6 + `)$`)
	}()
)
