//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// Notices are kept by a script and by memory, which must agree as the scripts of takes and package limit/state do.

// board is where notices are posted.
type board struct{ *arena }

func (b board) stored() string { return b.prefix + "topology" }

// run posts some notices and returns the first difference.
func (b board) run(seed, n uint64) error {
	ctx, r := context.Background(), rand.New(rand.NewPCG(seed, n))
	mem, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer mem.Close()
	if err := b.client.Del(ctx, b.stored()).Err(); err != nil {
		return err
	}
	trace := ""
	for range 2 + r.IntN(8) {
		notice := backend.Announcement{
			Version: oneOf(r, 1, 2, 3, 9, 10, 11, limit.MaxCount-1, limit.MaxCount),
			Digest:  []string{"a", "b", "c0ffee", "\x00\xff", "%d"}[r.IntN(5)],
			Text:    []string{"", "", "{}", "two\nlines", "\n", " 7 x\n", "\x00\r\n\xff"}[r.IntN(7)],
		}
		trace += fmt.Sprintf("%+v; ", notice)
		got, err := b.redis.Publish(ctx, notice)
		if err != nil {
			return fmt.Errorf("%s%w", trace, err)
		}
		if want, err := mem.Publish(ctx, notice); err != nil || got != want {
			return fmt.Errorf("%sthe script leaves %+v, memory %+v, %v", trace, got, want, err)
		}
		if kept := b.client.PTTL(ctx, b.stored()).Val(); kept > 0 {
			return fmt.Errorf("%sit is kept for %s only", trace, kept)
		}
	}
	return b.spoil(ctx, r)
}

// foreign is no notice.
var foreign = []string{"garbage", "5", "5 ", "5 \ny", "5 x", "5  x\ny", " 5 x\ny", "x 5\ny", "5\n", "\n", "5 x y\nz", "-5 x\ny", "f1m:9999999999999,1;"}

// spoil puts in the notice's place what is none, which every post must leave alone.
func (b board) spoil(ctx context.Context, r *rand.Rand) error {
	text := foreign[r.IntN(len(foreign))]
	if err := b.client.Set(ctx, b.stored(), text, 0).Err(); err != nil {
		return err
	}
	_, err := b.redis.Publish(ctx, backend.Announcement{Version: 1 + r.Int64N(9), Digest: "d", Text: "t"})
	var failed *backend.Error
	if !errors.As(err, &failed) || failed.Op != "publish" || failed.Kind != backend.Corrupt || failed.MayHaveCharged {
		return fmt.Errorf("a post where %q is stored: %v", text, err)
	}
	if now := b.client.Get(ctx, b.stored()).Val(); now != text {
		return fmt.Errorf("%q was replaced by %q", text, now)
	}
	return nil
}

func TestDifferentialPost(t *testing.T) {
	b := board{newArena(t, testserver.Redis(t), nil)}
	for n := range uint64(1500) {
		if err := b.run(*differentialSeed, n); err != nil {
			t.Fatalf("history %d: %v", n, err)
		}
	}
}

var postMutants = []mutant{
	{"post", "redis.call('GET', KEYS[1]) or ''", "''"},
	{"post", "'^((%d+) %S+)\\n'", "'^((%d+) %S+)'"},
	{"post", "'^((%d+) %S+)\\n'", "'((%d+) %S+)\\n'"},
	{"post", "'^((%d+) %S+)\\n'", "'^((%d+) %S*)\\n'"},
	{"post", "'^((%d+) %S+)\\n'", "'^((%d+) .+)\\n'"},
	{"post", "if stored ~= '' and not head then", "if false then"},
	{"post", "if stored ~= '' and not head then", "if not head then"},
	{"post", "(tonumber(version) or 0) > tonumber(ARGV[1]) then", "(tonumber(version) or 0) >= tonumber(ARGV[1]) then"},
	{"post", "(tonumber(version) or 0) > tonumber(ARGV[1]) then", "(version or '0') > ARGV[1] then"},
	{"post", "(tonumber(version) or 0) > tonumber(ARGV[1]) then", "false then"},
	{"post", "then return stored end", "then return head end"},
	{"post", "(tonumber(version) or 0) == tonumber(ARGV[1]) or ARGV[3] == ''", "ARGV[3] == ''"},
	{"post", "(tonumber(version) or 0) == tonumber(ARGV[1]) or ARGV[3] == ''", "(tonumber(version) or 0) == tonumber(ARGV[1])"},
	{"post", "return head or ''", "return stored"},
	{"post", "head = ARGV[1] .. ' ' .. ARGV[2]", "head = ARGV[1] .. ' ' .. ARGV[3]"},
	{"post", "head .. '\\n' .. ARGV[3]", "head .. '\\n'"},
	{"post", "head .. '\\n' .. ARGV[3])", "head .. '\\n' .. ARGV[3], 'PX', 3600000)"},
	{"post", "redis.call('SET', KEYS[1], head .. '\\n' .. ARGV[3])", ""},
}

// TestPostMutants runs post.lua with one mistake at a time.
func TestPostMutants(t *testing.T) {
	spoiler := &spoiler{}
	b := board{newArena(t, testserver.Redis(t), spoiler)}
	for _, m := range postMutants {
		name := strings.ReplaceAll(m.old+" -> "+m.new, "\n", " ")
		if !spoiler.spoil(m.script, m.old, m.new) {
			t.Errorf("%s: not found in the script", name)
			continue
		}
		var err error
		for n := uint64(0); n < 1500 && err == nil; n++ {
			err = b.run(11, n)
		}
		if err == nil {
			t.Errorf("survives: %s", name)
		}
	}
}
