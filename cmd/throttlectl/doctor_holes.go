package main

import (
	"fmt"
	"strings"
)

// hole is a known way out of the server's script engine, for whoever may run scripts there, as every user of Sluice may.
type hole struct {
	id    string
	what  string
	fixed []release // the first without it, of every branch that was mended; branches above the last never had it
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

// holesKnown is when the tables were last looked through. The versions are those of the projects' own advisories and release
// notes: redis.io/blog for the advisories of October 2025 and May 2026, github.com/redis/redis/releases and
// github.com/valkey-io/valkey/releases for the rest. Branches that ended before (7.0, say) were never mended there.
const holesKnown = "June 2026"

var redisHoles = []hole{
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

var valkeyHoles = []hole{
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

// in reports whether a version has the hole. Versions on a branch that wasn't mended have it, unless the branch is newer than
// all that were.
func (h *hole) in(v release) bool {
	for _, f := range h.fixed {
		if f.branch() == v.branch() {
			return v.before(f)
		}
	}
	return v.before(h.fixed[len(h.fixed)-1])
}

// mended is the nearest release without any of the holes that are known, on the branch of v or else on a newer one.
func mended(v release, holes []hole) (to release) {
	newest := holes[len(holes)-1]
	for _, candidate := range newest.fixed {
		to = candidate
		for _, h := range holes {
			for _, f := range h.fixed {
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

// oldest is the first release that Sluice works with: see redisbackend.Redis.
var oldest = release{6, 2, 0}

// judgeVersion looks for holes by what INFO says. What a distribution has mended doesn't show in a version.
func judgeVersion(said map[string]string) (f findings) {
	name, text, holes := "Redis", said["redis_version"], redisHoles
	if valkey := said["valkey_version"]; valkey != "" {
		name, text, holes = "Valkey", valkey, valkeyHoles
	}
	var v release
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		f.add(warning, "version", fmt.Sprintf("its version, %q, can't be read", text), "Look by hand whether it is maintained.")
		return f
	}
	if v.before(oldest) {
		f.add(critical, "version", fmt.Sprintf("%s %v is older than %v, the first that Sluice works with", name, v, oldest),
			"Upgrade it.")
	}
	var ids []string
	for _, h := range holes {
		if h.in(v) {
			ids = append(ids, fmt.Sprintf("%s (%s)", h.id, h.what))
		}
	}
	if len(ids) > 0 {
		f.add(warning, "version", fmt.Sprintf("%s %v has holes in its script engine that are known by %s: "+
			"%s", name, v, holesKnown, strings.Join(ids, ", ")),
			fmt.Sprintf("Upgrade to %v or newer. Distributions mend older versions: if the package is, "+
				"--ignore version.", mended(v, holes)))
	}
	return f
}
