package ring_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/ring"
)

func newRing(t testing.TB, members []ring.Member, cfg ring.Config) *ring.Ring {
	t.Helper()
	r, err := ring.New(members, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// equal returns n members of weight 1.
func equal(n int) []ring.Member {
	members := make([]ring.Member, n)
	for i := range members {
		members[i].Name = fmt.Sprintf("group-%02d", i)
	}
	return members
}

// textbook is the ring as its documentation tells it, written for the reader: every point in one sorted list, and a
// lookup that goes through it from the start.
type textbook struct {
	seed   uint64
	points []textbookPoint
}

type textbookPoint struct {
	hash uint64 // 48 bits
	name string
}

func newTextbook(members []ring.Member, cfg ring.Config) textbook {
	book := textbook{seed: cfg.Seed}
	for _, m := range members {
		for i := range cmp.Or(m.Weight, 1) * cmp.Or(cfg.Points, 8192) {
			hash := keyhash.Mix(keyhash.Mix(keyhash.Sum(m.Name), cfg.Seed), uint64(i))
			book.points = append(book.points, textbookPoint{hash >> 16, m.Name})
		}
	}
	slices.SortFunc(book.points, func(a, b textbookPoint) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.name, b.name))
	})
	return book
}

func (b textbook) owner(h uint64) string {
	const perSlot = (1 << 48) / 524288
	start := keyhash.Mix(h, b.seed) >> 16 / perSlot * perSlot
	first := slices.IndexFunc(b.points, func(p textbookPoint) bool { return p.hash >= start })
	return b.points[max(first, 0)].name
}

// drawMembers draws members with distinct names and any valid weight that keeps a ring small.
func drawMembers(t *rapid.T) []ring.Member {
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) ring.Member {
		return ring.Member{
			Name:   rapid.StringN(1, 12, -1).Draw(t, "name"),
			Weight: rapid.IntRange(0, 4).Draw(t, "weight"),
		}
	}), 1, 12, func(m ring.Member) string { return m.Name }).Draw(t, "members")
}

func drawConfig(t *rapid.T) ring.Config {
	return ring.Config{
		Seed:   rapid.Uint64().Draw(t, "seed"),
		Points: rapid.IntRange(1, 64).Draw(t, "points"),
	}
}

func mustNew(t *rapid.T, members []ring.Member, cfg ring.Config) *ring.Ring {
	r, err := ring.New(members, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// someKeys returns keys that fall on every part of a ring.
func someKeys() []string {
	keys := make([]string, 2000)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", i)
	}
	return keys
}

func TestRingIsTheTextbookRing(t *testing.T) {
	keys := append(someKeys()[:50], "", "\x00", strings.Repeat("long", 1000))
	rapid.Check(t, func(t *rapid.T) {
		members, cfg := drawMembers(t), drawConfig(t)
		r, book := mustNew(t, members, cfg), newTextbook(members, cfg)
		for _, key := range keys {
			if got, want := r.Owner(key), book.owner(keyhash.Sum(key)); got != want {
				t.Fatalf("Owner(%q) = %q, want %q", key, got, want)
			}
		}
		for _, p := range book.points { // keys on the edge of a slot, with and without a point in it
			for _, place := range []uint64{p.hash << 16, p.hash >> 29 << 45, p.hash>>29<<45 - 1} {
				h := unmix(place, cfg.Seed)
				if keyhash.Mix(h, cfg.Seed) != place {
					t.Fatalf("unmix(%#x) is not the inverse of Mix", place)
				}
				if got, want := r.OwnerHash(h), book.owner(h); got != want {
					t.Fatalf("owner at %#x = %q, want %q", place, got, want)
				}
			}
		}
	})
}

// unmix is the inverse of keyhash.Mix: it finds the key hash that falls on a chosen place of the ring.
func unmix(h, seed uint64) uint64 {
	h = (h ^ h>>31 ^ h>>62) * 0x319642b2d24d8ec3
	h = (h ^ h>>27 ^ h>>54) * 0x96de1b173f119089
	h = h ^ h>>30 ^ h>>60
	return h - seed - 0x9e3779b97f4a7c15
}

func TestOrderOfMembersDoesNotMatter(t *testing.T) {
	keys := someKeys()
	rapid.Check(t, func(t *rapid.T) {
		members, cfg := drawMembers(t), drawConfig(t)
		a := mustNew(t, members, cfg)
		b := mustNew(t, rapid.Permutation(members).Draw(t, "permutation"), cfg)
		for _, key := range keys {
			if a.Owner(key) != b.Owner(key) {
				t.Fatalf("Owner(%q) is %q or %q, by the order of the members", key, a.Owner(key), b.Owner(key))
			}
		}
		if !slices.Equal(a.Members(), b.Members()) {
			t.Fatalf("Members: %v, %v", a.Members(), b.Members())
		}
	})
}

// The first points of these two names have the same upper 48 bits at seed 0, one of 7 such pairs among 2^26 names.
const twin, otherTwin = "group-2486079", "group-51704432"

func TestEqualPointsAreOrderedByName(t *testing.T) {
	cfg := ring.Config{Points: 1}
	twins := []ring.Member{{Name: twin}, {Name: otherTwin}, {Name: "other"}}
	r := newRing(t, twins, cfg)
	reversed := newRing(t, []ring.Member{twins[2], twins[1], twins[0]}, cfg)
	without := newRing(t, twins[1:], cfg)
	hidden := 0
	for _, key := range someKeys() {
		owner, next := r.Owner(key), without.Owner(key)
		switch {
		case owner != reversed.Owner(key):
			t.Fatalf("%q: the owner depends on the order of the members", key)
		case owner == otherTwin:
			t.Fatalf("%q: owned by the greater of two names at one point", key)
		case owner == twin && next != otherTwin, owner != twin && next != owner:
			t.Fatalf("%q moved from %q to %q", key, owner, next)
		case owner == twin:
			hidden++
		}
	}
	if hidden == 0 {
		t.Fatal("no key tried the two members with equal points")
	}
}

func TestOnlyKeysOfTheRemovedMemberMove(t *testing.T) {
	keys := someKeys()
	rapid.Check(t, func(t *rapid.T) {
		members, cfg := drawMembers(t), drawConfig(t)
		members = append(members, ring.Member{Name: "the longest name to be drawn", Weight: 1})
		gone := rapid.IntRange(0, len(members)-1).Draw(t, "removed")
		before := mustNew(t, members, cfg)
		if len(members) == 1 {
			return
		}
		after := mustNew(t, slices.Delete(slices.Clone(members), gone, gone+1), cfg)
		for _, key := range keys {
			if was, is := before.Owner(key), after.Owner(key); was != members[gone].Name && is != was {
				t.Fatalf("%q moved from %q to %q, which both stayed", key, was, is)
			}
		}
	})
}

func TestRaisingAWeightMovesKeysOnlyThere(t *testing.T) {
	keys := someKeys()
	rapid.Check(t, func(t *rapid.T) {
		members, cfg := drawMembers(t), drawConfig(t)
		before := mustNew(t, members, cfg)
		raised := rapid.IntRange(0, len(members)-1).Draw(t, "raised")
		members[raised].Weight = cmp.Or(members[raised].Weight, 1) + rapid.IntRange(1, 4).Draw(t, "by")
		after := mustNew(t, members, cfg)
		for _, key := range keys {
			if was, is := before.Owner(key), after.Owner(key); is != was && is != members[raised].Name {
				t.Fatalf("%q moved from %q to %q when %q was raised", key, was, is, members[raised].Name)
			}
		}
	})
}

func TestOwnersNeverChangeBetweenReleases(t *testing.T) {
	// Every owner of a key, as one after the other leaves.
	owners := func(key string) string {
		var names []string
		for members := []ring.Member{{Name: "a"}, {Name: "b", Weight: 2}, {Name: "c"}}; len(members) > 0; {
			owner := newRing(t, members, ring.Config{Seed: 7}).Owner(key)
			names = append(names, owner)
			members = slices.DeleteFunc(members, func(m ring.Member) bool { return m.Name == owner })
		}
		return strings.Join(names, " ")
	}
	for key, want := range map[string]string{
		"":             "b c a",
		"user:1":       "c b a",
		"user:2":       "b c a",
		"user:3":       "b a c",
		"198.51.100.7": "b c a",
		"tenant/ä":     "a b c",
		"\xff\xfe":     "b c a",
		"user:42":      "b c a",
	} {
		if got := owners(key); got != want {
			t.Errorf("the owners of %q are %q, want %q: a release that moves keys loses their counts", key, got, want)
		}
	}
}

func TestMembers(t *testing.T) {
	given := []ring.Member{{Name: "b", Weight: 3}, {Name: "a"}}
	r := newRing(t, given, ring.Config{})
	want := []ring.Member{{Name: "a", Weight: 1}, {Name: "b", Weight: 3}}
	r.Members()[0].Name = "changed by a caller"
	given[0].Name = "changed by a caller"
	if got := r.Members(); !slices.Equal(got, want) {
		t.Errorf("Members() = %v, want %v", got, want)
	}
}

func TestZeroRing(t *testing.T) {
	var r ring.Ring
	if got := r.Owner("user:1"); got != "" {
		t.Errorf("Owner = %q, want none", got)
	}
	for m := range r.Shares() {
		t.Errorf("share of %v", m)
	}
	if got := r.Members(); len(got) != 0 {
		t.Errorf("Members = %v", got)
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	for _, tt := range []struct {
		name    string
		members []ring.Member
		cfg     ring.Config
		want    []string
	}{
		{"no members", nil, ring.Config{}, []string{"ring: len(members) is 0: want 1 to 4096"}},
		{"everything", []ring.Member{{"a", -1}, {"", 1025}, {"a", 1}}, ring.Config{Points: -1}, []string{
			`ring: Points is -1: want 1 to 65536, or 0 for 8192`,
			`ring: members[0].Weight is -1: want 1 to 1024, or 0 for 1`,
			`ring: members[1].Weight is 1025: want 1 to 1024, or 0 for 1`,
			`ring: members[1].Name is "": want a name`,
			`ring: members[2].Name is "a": members[0] has it already`,
		}},
		{"points", equal(1), ring.Config{Points: 65537}, []string{
			"ring: Points is 65537: want 1 to 65536, or 0 for 8192",
		}},
		{"sum of points", []ring.Member{{"a", 1024}, {"b", 1024}, {"c", 0}}, ring.Config{}, []string{
			"ring: Points x total weight is 16785408: want at most 16777216",
		}},
		{"too many members", equal(4097), ring.Config{Points: 1}, []string{
			"ring: len(members) is 4097: want 1 to 4096",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ring.New(tt.members, tt.cfg)
			if r != nil || err == nil {
				t.Fatalf("New = %v, %v, want an error", r, err)
			}
			if got, want := err.Error(), strings.Join(tt.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			var ce *ring.ConfigError
			if !errors.As(err, &ce) || ce.Error() != tt.want[0] || ce.Field == "" || ce.Value == nil {
				t.Errorf("errors.As found %#v", ce)
			}
		})
	}
}

func TestNewAcceptsTheBounds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		members []ring.Member
		cfg     ring.Config
	}{
		{"most members", equal(4096), ring.Config{Points: 1}},
		{"most points", equal(1), ring.Config{Points: 65536}},
		{"most weight", []ring.Member{{"a", 1024}, {"b", 0}}, ring.Config{Points: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRing(t, tt.members, tt.cfg)
			if got, want := len(r.Members()), len(tt.members); got != want {
				t.Errorf("%d members, want %d", got, want)
			}
		})
	}
}
