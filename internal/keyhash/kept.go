package keyhash

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"sync/atomic"
)

// Longest is how many bytes of a key tables keep.
const Longest = 200

// Kept is what stands for a key in a table: the key itself, or of one that is longer than Longest its head, its length and
// its SHA-256. What stands for a long key is longer than Longest, too, so that no short key can be taken for it.
func Kept(key string) string {
	if len(key) <= Longest {
		return key
	}
	return digest(key)
}

const keptHead = 152 // with the rest at least 201 bytes

func digest(key string) string {
	b := make([]byte, 0, keptHead+72)
	b = append(b, key[:keptHead]...)
	b = append(b, "%~"...)
	b = strconv.AppendInt(b, int64(len(key)), 10)
	b = append(b, '~')
	sum := sha256.Sum256([]byte(key))
	return string(base64.RawURLEncoding.AppendEncode(b, sum[:]))
}

// Room bounds in bytes what the long keys in a queue take, which needs keys as they are. Short ones are bounded by the
// queue's length. The zero value is empty.
type Room struct{ held atomic.Int64 }

// MaxRoom is how many bytes the long keys in a queue may have together.
const MaxRoom = 1 << 20

// Enter reports whether there is room for a key, which then is taken until Leave.
func (r *Room) Enter(key string) bool {
	if len(key) <= Longest {
		return true
	}
	if r.held.Add(int64(len(key))) > MaxRoom {
		r.held.Add(-int64(len(key)))
		return false
	}
	return true
}

// Leave frees the room of a key that has entered.
func (r *Room) Leave(key string) {
	if len(key) > Longest {
		r.held.Add(-int64(len(key)))
	}
}
