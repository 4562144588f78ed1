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
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// Announcements are kept by a script and by memory, which must agree as the scripts of takes and package limit/state do.

// board is where announcements are published.
type board struct{ *arena }

func (b board) stored() string { return b.prefix + "topology" }

// run publishes some announcements and returns the first difference.
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
		announcement := control.Announcement{
			Version: oneOf(r, 1, 2, 3, 9, 10, 11, limit.MaxCount-1, limit.MaxCount),
			Digest:  []string{"a", "b", "c0ffee", "\x00\xff", "%d"}[r.IntN(5)],
			Text:    []string{"{}", "two\nlines", "\n", " 7 x\n", "\x00\r\n\xff"}[r.IntN(5)],
		}
		trace += fmt.Sprintf("%+v; ", announcement)
		got, err := b.redis.Publish(ctx, announcement)
		if err != nil {
			return fmt.Errorf("%s%w", trace, err)
		}
		if want, err := mem.Publish(ctx, announcement); err != nil || got != want {
			return fmt.Errorf("%sthe script leaves %+v, memory %+v, %v", trace, got, want, err)
		}
		if kept := b.client.PTTL(ctx, b.stored()).Val(); kept > 0 {
			return fmt.Errorf("%sit is kept for %s only", trace, kept)
		}
	}
	return b.spoil(ctx, r)
}

// foreign is no announcement.
var foreign = []string{"garbage", "5", "5 ", "5 \ny", "5 x", "5  x\ny", " 5 x\ny", "x 5\ny", "5\n", "\n", "5 x y\nz", "-5 x\ny", "f1m:9999999999999,1;"}

// spoil puts in the announcement's place what is none, which Publish must leave alone.
func (b board) spoil(ctx context.Context, r *rand.Rand) error {
	text := foreign[r.IntN(len(foreign))]
	if err := b.client.Set(ctx, b.stored(), text, 0).Err(); err != nil {
		return err
	}
	_, err := b.redis.Publish(ctx, control.Announcement{Version: 1 + r.Int64N(9), Digest: "d", Text: "t"})
	var failed *backend.Error
	if !errors.As(err, &failed) || failed.Op != "publish" || failed.Kind != backend.Corrupt || failed.MayHaveCharged {
		return fmt.Errorf("a Publish where %q is stored: %v", text, err)
	}
	if now := b.client.Get(ctx, b.stored()).Val(); now != text {
		return fmt.Errorf("%q was replaced by %q", text, now)
	}
	return nil
}

func TestDifferentialPublish(t *testing.T) {
	b := board{newArena(t, testserver.Redis(t), nil)}
	for n := range uint64(1500) {
		if err := b.run(*differentialSeed, n); err != nil {
			t.Fatalf("history %d: %v", n, err)
		}
	}
}

var publishMutants = []mutant{
	{"publish", "redis.call('GET', KEYS[1]) or ''", "''"},
	{"publish", "'^((%d+) %S+)\\n'", "'^((%d+) %S+)'"},
	{"publish", "'^((%d+) %S+)\\n'", "'((%d+) %S+)\\n'"},
	{"publish", "'^((%d+) %S+)\\n'", "'^((%d+) %S*)\\n'"},
	{"publish", "'^((%d+) %S+)\\n'", "'^((%d+) .+)\\n'"},
	{"publish", "if stored ~= '' and not head then", "if false then"},
	{"publish", "if stored ~= '' and not head then", "if not head then"},
	{"publish", "(tonumber(version) or 0) > tonumber(ARGV[1]) then", "(tonumber(version) or 0) >= tonumber(ARGV[1]) then"},
	{"publish", "(tonumber(version) or 0) > tonumber(ARGV[1]) then", "(version or '0') > ARGV[1] then"},
	{"publish", "(tonumber(version) or 0) > tonumber(ARGV[1]) then", "false then"},
	{"publish", "then return stored end", "then return head end"},
	{"publish", "(tonumber(version) or 0) == tonumber(ARGV[1]) then", "false then"},
	{"publish", "(tonumber(version) or 0) == tonumber(ARGV[1]) then return head", "(tonumber(version) or 0) == tonumber(ARGV[1]) then return stored"},
	{"publish", "head = ARGV[1] .. ' ' .. ARGV[2]", "head = ARGV[1] .. ' ' .. ARGV[3]"},
	{"publish", "head .. '\\n' .. ARGV[3]", "head .. '\\n'"},
	{"publish", "head .. '\\n' .. ARGV[3])", "head .. '\\n' .. ARGV[3], 'PX', 3600000)"},
	{"publish", "redis.call('SET', KEYS[1], head .. '\\n' .. ARGV[3])", ""},
}

// TestPublishMutants runs publish.lua with one mistake at a time.
func TestPublishMutants(t *testing.T) {
	spoiler := &spoiler{}
	b := board{newArena(t, testserver.Redis(t), spoiler)}
	for _, m := range publishMutants {
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
