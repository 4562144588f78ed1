package doctor

import (
	"fmt"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

// vulnerability is a known one of the server's script engine. Every user of Sluice may run scripts.
type vulnerability struct {
	id    string
	what  string
	fixed []release // the first release with the fix, for each branch; branches above the last never had it
}

// release is a version: major, minor, patch.
type release [3]int

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }

func (r release) branch() [2]int { return [2]int{r[0], r[1]} }

func (r release) before(o release) bool {
	for i := range r {
		if r[i] != o[i] {
			return r[i] < o[i]
		}
	}
	return false
}

// vulnerabilitiesAsOf is when the tables were last reviewed. Their source is the projects' own advisories and release notes:
// redis.io/blog for the advisories of October 2025 and May 2026, github.com/redis/redis/releases and
// github.com/valkey-io/valkey/releases for the rest. Branches that ended before (7.0, say) were never fixed.
const vulnerabilitiesAsOf = "June 2026"

var redisVulnerabilities = []vulnerability{
	{"CVE-2022-24834", "heap overflow in cjson and cmsgpack", []release{{6, 0, 20}, {6, 2, 13}, {7, 0, 12}}},
	{"CVE-2024-31449", "stack overflow in the bit library", []release{{6, 2, 16}, {7, 2, 6}, {7, 4, 1}}},
	{"CVE-2024-46981", "use after free by the garbage collector", []release{{6, 2, 17}, {7, 2, 7}, {7, 4, 2}}},
	{"CVE-2025-49844", "RediShell: use after free in the parser, remote code execution", october2025},
	{"CVE-2025-46817", "integer overflow in unpack, remote code execution", october2025},
	{"CVE-2025-46818", "scripts that run as another user", october2025},
	{"CVE-2025-46819", "reads out of bounds", october2025},
	{"CVE-2026-23631", "use after free on a replica that takes writes", []release{{6, 2, 22}, {7, 2, 14}, {7, 4, 9}, {8, 2, 6}, {8, 4, 3}, {8, 6, 3}}},
}

var october2025 = []release{{6, 2, 20}, {7, 2, 11}, {7, 4, 6}, {8, 0, 4}, {8, 2, 2}}

var valkeyVulnerabilities = []vulnerability{
	{"CVE-2024-31449", "stack overflow in the bit library", []release{{7, 2, 7}, {8, 0, 1}}},
	{"CVE-2024-46981", "use after free by the garbage collector", []release{{7, 2, 8}, {8, 0, 2}}},
	{"CVE-2025-49844", "use after free in the parser, remote code execution", valkeyOctober2025},
	{"CVE-2025-46817", "integer overflow in unpack, remote code execution", valkeyOctober2025},
	{"CVE-2025-46818", "scripts that run as another user", valkeyOctober2025},
	{"CVE-2025-46819", "reads out of bounds", valkeyOctober2025},
	{"CVE-2025-67733", "error_reply, which puts replies of its own into the stream", []release{{7, 2, 12}, {8, 0, 7}, {8, 1, 6}, {9, 0, 3}}},
	{"CVE-2026-23631", "use after free on a replica whose script yields", []release{{7, 2, 13}, {8, 0, 8}, {8, 1, 7}, {9, 0, 4}}},
}

var valkeyOctober2025 = []release{{7, 2, 11}, {8, 0, 6}, {8, 1, 4}}

// affects reports whether a version is vulnerable. A version on a branch without a fix is, unless the branch is newer than all
// with one.
func (u *vulnerability) affects(v release) bool {
	for _, f := range u.fixed {
		if f.branch() == v.branch() {
			return v.before(f)
		}
	}
	return v.before(u.fixed[len(u.fixed)-1])
}

// nearestFixed is the nearest release with all fixes, on the branch of v or else on a newer one.
func nearestFixed(v release, known []vulnerability) (to release) {
	newest := known[len(known)-1]
	for _, candidate := range newest.fixed {
		to = candidate
		for _, u := range known {
			for _, f := range u.fixed {
				if f.branch() == to.branch() && to.before(f) {
					to = f
				}
			}
		}
		if !to.before(v) {
			return to
		}
	}
	return to
}

// oldest is the first release that redisbackend.Redis works with.
var oldest = release{6, 2, 0}

// checkVersion goes by INFO, which doesn't show what a distribution has fixed.
func checkVersion(said map[string]string) (f finding.List) {
	name, text, known := "Redis", said["redis_version"], redisVulnerabilities
	if valkey := said["valkey_version"]; valkey != "" {
		name, text, known = "Valkey", valkey, valkeyVulnerabilities
	}
	var v release
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		f.Add(finding.Warning, "version", fmt.Sprintf("its version, %q, can't be read", text), "Look by hand whether it is maintained.")
		return f
	}
	if v.before(oldest) {
		f.Add(finding.Critical, "version", fmt.Sprintf("%s %v is older than %v, the first that Sluice works with", name, v, oldest),
			"Upgrade it.")
	}
	var ids []string
	for _, u := range known {
		if u.affects(v) {
			ids = append(ids, fmt.Sprintf("%s (%s)", u.id, u.what))
		}
	}
	if len(ids) > 0 {
		f.Add(finding.Warning, "version", fmt.Sprintf("%s %v has holes in its script engine that are known by %s: "+
			"%s", name, v, vulnerabilitiesAsOf, strings.Join(ids, ", ")),
			fmt.Sprintf("Upgrade to %v or newer. Distributions fix older versions: if the package is, "+
				"--ignore version.", nearestFixed(v, known)))
	}
	return f
}
