package keyhash_test

import (
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/keyhash"
)

// Of two keys that differ what is kept differs, whatever they have in common; and it is short.
func TestKept(t *testing.T) {
	long := strings.Repeat("k", 256<<10)
	keys := []string{
		"", "a", strings.Repeat("k", 199), strings.Repeat("k", 200), strings.Repeat("k", 201), strings.Repeat("k", 202),
		long, long + "a", long + "b", "a" + long, long[:len(long)-1], keyhash.Kept(long), keyhash.Kept(keyhash.Kept(long)),
		strings.Repeat("é", 101), strings.Repeat("\xff", 201),
	}
	seen := map[string]string{}
	for _, key := range keys {
		kept := keyhash.Kept(key)
		if other, ok := seen[kept]; ok && other != key {
			t.Errorf("two keys of %d and %d bytes are kept alike", len(key), len(other))
		}
		seen[kept] = key
		if kept != keyhash.Kept(strings.Clone(key)) {
			t.Errorf("a key of %d bytes is kept in two ways", len(key))
		}
		if short := len(key) <= keyhash.Longest; short != (kept == key) || short != (len(kept) <= keyhash.Longest) || len(kept) > 230 {
			t.Errorf("of %d bytes %d are kept", len(key), len(kept))
		}
	}
	short := strings.Repeat("k", keyhash.Longest)
	if allocs := testing.AllocsPerRun(100, func() { _ = keyhash.Kept(short) }); allocs != 0 {
		t.Errorf("%v allocations for a short key", allocs)
	}
}

func TestRoom(t *testing.T) {
	var room keyhash.Room
	short, long := strings.Repeat("k", keyhash.Longest), strings.Repeat("k", keyhash.MaxRoom/4)
	for i := range 10 {
		if got := room.Enter(long); got != (i < 4) {
			t.Errorf("key %d of a quarter each enters: %t", i, got)
		}
		if !room.Enter(short) {
			t.Error("no room for a short key")
		}
	}
	room.Leave(short)
	room.Leave(long)
	if !room.Enter(long) || room.Enter(long) {
		t.Error("where one has left, one has room")
	}
}
