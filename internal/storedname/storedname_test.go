package storedname

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStoredName(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	sum := sha256.Sum256([]byte(long))
	for _, test := range []struct{ policy, key, want string }{
		{"api", "user:42", "sl:api:user:42"},
		{"", "user:42", "sl::user:42"},
		{"api", "münchen/東京", "sl:api:münchen/東京"},
		{"api", "{user}", "sl:api:%7Buser%7D"},
		{"api", "100%", "sl:api:100%25"},
		{"api", "a b\x00\r\n\x7f", "sl:api:a%20b%00%0D%0A%7F"},
		{"api", "\xff\xfe", "sl:api:%FF%FE"},
		{"api", "\uFFFD", "sl:api:\uFFFD"}, // not the same as what is not valid
		{"api", strings.Repeat("x", 200), "sl:api:" + strings.Repeat("x", 200)},
		{"api", long, "sl:api:" + strings.Repeat("x", 120) + "%~1048576~" + base64.RawURLEncoding.EncodeToString(sum[:])},
	} {
		if got := Of("sl:", test.policy, test.key); got != test.want {
			t.Errorf("key %.40q is stored as %.80q, want %.80q", test.key, got, test.want)
		}
	}
}

// Keys that look alike, or like another policy's, are strangers.
func TestStoredNamesDoNotCollide(t *testing.T) {
	x200 := strings.Repeat("x", 200)
	keys := []string{
		"a", "a:b", "a:b:c", "b:c", "c", "alice", "alice:exp", "alice%3Aexp", "{a}", "a}", "%7Ba%7D", "%257Ba%257D", "\x00", "%00",
		" ", "%20", "\r", "\n", "\xff", "%FF", "\uFFFD", "\u00e9", "e\u0301", "\u212b", "\u00c5", x200, x200 + "x", x200 + "y",
		x200 + "xy", strings.Repeat("{", 67), strings.Repeat("{", 68), strings.Repeat("東", 67), strings.Repeat("東", 66) + "北",
	}
	for _, key := range keys { // what a long key looks like is itself a key
		keys = append(keys, Of("", "", key)[1:])
	}
	type origin struct{ policy, key string }
	seen := make(map[string]origin)
	for _, policy := range []string{"", "a", "a-b", "b"} {
		for _, key := range keys {
			name := Of("sl:", policy, key)
			o := origin{policy, key}
			if other, taken := seen[name]; taken && other != o {
				t.Errorf("%.60q: the key %.60q of %q and the key %.60q of %q", name, o.key, o.policy, other.key, other.policy)
			}
			seen[name] = o
		}
	}
}

func FuzzStoredName(f *testing.F) {
	for _, key := range []string{"a", "a:b", "{a}", "%", "%7B", "\xff", strings.Repeat("東", 70), strings.Repeat("{", 80)} {
		f.Add(key, "b", "p")
	}
	f.Fuzz(func(t *testing.T, key, other, policy string) {
		if len(policy) > 32 || strings.Contains(policy, ":") {
			policy = "p"
		}
		name := Of("sl:", policy, key)
		encoded := strings.TrimPrefix(name, "sl:"+policy+":")
		if len(encoded) > maxEncodedKey {
			t.Fatalf("%q is stored in %d bytes", key, len(encoded))
		}
		for i := range len(encoded) {
			if c := encoded[i]; c <= ' ' || c == 0x7f || c == '{' || c == '}' {
				t.Fatalf("%q is stored with %q", key, c)
			}
		}
		if !utf8.ValidString(encoded) {
			t.Fatalf("%q is stored as %q, which is not valid UTF-8", key, encoded)
		}
		if key != other && Of("sl:", policy, other) == name {
			t.Fatalf("%q and %q are both stored as %q", key, other, name)
		}
		if !strings.Contains(encoded, "%~") && unescape(t, encoded) != key {
			t.Fatalf("%q is stored as %q", key, encoded)
		}
	})
}

// unescape undoes %XX.
func unescape(t *testing.T, s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		const hex = "0123456789ABCDEF"
		high, low := strings.IndexByte(hex, s[i+1]), strings.IndexByte(hex, s[i+2])
		if high < 0 || low < 0 {
			t.Fatalf("%q has a bad escape", s)
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String()
}
