// Package storedname encodes the names under which servers store the states of keys.
package storedname

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

const (
	maxEncodedKey = 200 // bytes; with prefix and policy a name stays within Memcached's 250
	keptOfLongKey = 120
)

// Of is the name under which a key's state is stored: prefix, policy, ":" and the encoded key. It is
// injective: a policy's name has no colon, and AppendKey is injective.
func Of(prefix, policy, key string) string {
	var space [128]byte // of the stack, for most names
	b := append(space[:0], prefix...)
	b = append(b, policy...)
	b = append(b, ':')
	return string(AppendKey(b, key))
}

// AppendKey appends key encoded so that every server takes it and a person can read it. Bytes that are not safe everywhere
// become %XX: percent, braces (Redis Cluster's hash tags), spaces, control bytes, and what is not valid UTF-8. A
// result of more than maxEncodedKey bytes keeps its head and ends in "%~", the length of the key, "~" and the
// SHA-256 of the whole key; no shorter key can look like that, since % is always followed by two hex digits there.
func AppendKey(b []byte, key string) []byte {
	start := len(b)
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		if size == 1 && (r == utf8.RuneError || r <= ' ' || r == 0x7f || r == '%' || r == '{' || r == '}') {
			const hex = "0123456789ABCDEF"
			b = append(b, '%', hex[key[i]>>4], hex[key[i]&15])
		} else {
			b = append(b, key[i:i+size]...)
		}
		i += size
		if len(b)-start > maxEncodedKey {
			return appendLongKey(b[:start], b[start:], key)
		}
	}
	return b
}

func appendLongKey(b, encoded []byte, key string) []byte {
	kept := keptOfLongKey
	for !utf8.RuneStart(encoded[kept]) { // don't cut a character
		kept--
	}
	for i := kept - 2; i < kept; i++ { // nor an escape
		if encoded[i] == '%' {
			kept = i
		}
	}
	b = append(b, encoded[:kept]...)
	b = append(b, "%~"...)
	b = strconv.AppendInt(b, int64(len(key)), 10)
	b = append(b, '~')
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.AppendEncode(b, sum[:])
}
