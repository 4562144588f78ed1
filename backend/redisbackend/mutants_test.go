//go:build unix

package redisbackend_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/scripts"
)

// mutant is a script with old replaced by new.
type mutant struct{ script, old, new string }

// mutants are small mistakes in the scripts. The random histories must tell each from package limit/state. What is missing
// here makes no difference (>= instead of > before a branch that does the same).
var mutants = []mutant{
	// state.lua, which every script starts with
	{"", "if not id or n == MAX_ENTRIES then return nil end", "if not id or n == MAX_ENTRIES then return bodies, n end"},
	{"", "if not id or n == MAX_ENTRIES then", "if not id then"},
	{"", " or string.find(text, TOO_LONG)", ""},
	{"", "return first * 1000 end", "return first * 1000 + 1 end"},
	{"", "frac == '' and tonumber(first) or first + 1", "tonumber(first)"},
	{"", "if refunded == 0 then return format('%.0f', charged) end", ""},
	{"", "format('%.0f', charged)", "format('%.14g', charged)"},
	{"", "(%d+)%-?(%d*)%-?(%d*)", "(%d+)%-?(%d*)"},
	{"", "while n > 1 and charged[n] == 0 do n = n - 1 end", ""},
	{"", "used + (charged[j] - refunded[j])", "used + charged[j]"},
	{"", "used + (charged[j] - refunded[j])", "used + charged[j] - refunded[j]"},
	{"", "if c == 0 and cf == 0 then", "if c == 0 then"},
	{"", "if frac >= rate then", "if frac > rate then"},
	{"", "us < ous or us == ous and frac < ofrac", "us < ous or us == ous and frac <= ofrac"},
	{"", "us < ous or us == ous and frac < ofrac", "us < ous"},
	{"", ", 'KEEPTTL')", ")"},
	{"take", "allowed = cost > 0", "allowed = cost >= 0"},
	{"take", "tonumber(r) > tonumber(reset)", "tonumber(r) >= tonumber(reset)"},
	{"take", "tonumber(r) > tonumber(reset)", "tonumber(r) < tonumber(reset)"},
	{"take", "count(math.max(spent, s), ", "count(tonumber(s), "},
	{"take", "math.max(spent, s), math.max(back, b)", "spent, math.max(back, b)"},
	{"take", "math.max(spent, s), math.max(back, b)", "s, math.max(back, b)"},
	{"take", "math.max(back, b)", "b"},
	{"take", "math.max(back, b)", "back"},
	{"take", "math.max(void, v)", "v"},
	{"take", "math.max(void, v)", "void"},
	{"take", "local before = lost and spent - back or 0 ", "if true then return floor end\n    local before = 0 "},
	{"take", "local before = lost and spent - back or 0 ", "local before = lost and spent or 0 "},
	{"take", "s, b, v = lost and s - b or 0, 0, 0", "return body"},
	{"take", "s, b, v = lost and s - b or 0, 0, 0", "b, v = 0, 0"},
	{"take", "s, b, v = lost and s - b or 0, 0, 0", "s = lost and s - b or 0"},
	{"take", "elseif r ~= reset then", "elseif false then"},
	{"take", "learned = learned or joined ~= body", ""},
	{"take", "learned = learned or joined ~= body", "learned = true"},
	{"take", "cost > max - (spent - back)", "cost >= max - (spent - back)"},
	{"take", "cost > max - (spent - back)", "cost > max - spent"},
	{"take", "(spent - back) or cost > MAX_COUNT - spent then", "(spent - back) then"},
	{"take", "count(spent + cost, back, void), reset", "count(spent, back, void), reset"},
	{"take", "precision = precision * UNITS[fine]", "precision = precision + 0"},
	{"take", "window * UNITS[unit] / precision", "window * UNITS[unit] / precision - 1"},
	{"take", "local last = math.max(stop, fstop)", "local last = stop"},
	{"take", "(last - stop) / precision, (last - fstop) / precision", "0, (last - fstop) / precision"},
	{"take", "math.max(ours[j - behind] or 0, theirs[j - fbehind] or 0)", "theirs[j - fbehind] or 0"},
	{"take", "math.max(ours[j - behind] or 0, theirs[j - fbehind] or 0)", "ours[j - behind] or 0"},
	{"take", "if tonumber(stop) >= fresh then", "if tonumber(stop) <= fresh then"},
	{"take", "if cost > max - used or cost > MAX_COUNT - spent then", "if cost >= max - used then"},
	{"take", "cost > max - used or cost > MAX_COUNT - spent", "cost > max - used"},
	{"take", "for j = 2, step do ns[j], nb[j], nv[j] = 0, 0, 0 end", ""},
	{"take", "math.min(#spent, size - step)", "#spent"},
	{"take", "math.min(#spent, size - step)", "math.min(#spent, size - step - 1)"},
	{"take", "(fresh - stop) / precision", "(fresh - stop) / precision - 1"},
	{"take", "if cost > max - used then", "if cost >= max - used then"},
	{"take", "if less(c, cf, fc, fcf) then c, cf = fc, fcf end", ""},
	{"take", "if less(a, af, fa, faf) then a, af = fa, faf end", ""},
	{"take", "af, cf = math.min(af, rate - 1), math.min(cf, rate - 1)", ""},
	{"take", "if less(a, af, now, 0) then a, af = now, 0 end", ""},
	{"take", "wait > 0 or wait == 0 and wait_frac > 0", "wait > 0"},
	{"take", "wait > 0 or wait == 0 and wait_frac > 0", "wait >= 0"},
	{"take", "a, af = plus(a, af, c, cf, rate)\n", "\n"},
	{"take", "if less(p, pf, fp, fpf) then p, pf = fp, fpf end", ""},
	{"take", "if less(p, pf, fp, fpf) then p, pf = fp, fpf end", "p, pf = fp, fpf"},
	{"take", "if less(p, pf, a, af) then p, pf = a, af end", "p, pf = a, af"},
	{"take", "if born == fborn then", "if true then"}, // as if all copies were of one life
	{"take", "fa, faf = fp, fpf\n", "\n"},
	{"take", "fa, faf = fp, fpf\n", "fa, faf = 0, 0\n"},
	{"take", "a, af, c, cf, born, seen = p, pf, fc, fcf, fborn, fseen", "return floor"},
	{"take", "a, af, c, cf, born, seen = p, pf, fc, fcf, fborn, fseen", "c, cf, born, seen = fc, fcf, fborn, fseen"},
	{"take", "a, af, c, cf, born, seen = p, pf, fc, fcf, fborn, fseen", "a, af, born, seen = p, pf, fborn, fseen"},
	{"take", "elseif born > fborn then", "elseif born < fborn then"},
	{"take", "seen = math.max(seen, fseen)", ""},
	{"take", "seen = math.max(seen, fseen)", "seen = fseen"},
	{"take", "born, math.max(seen, now))", "born, now)"},
	{"take", "born, math.max(seen, now))", "born, seen)"},
	{"take", "0, 0, now, now\n", "0, 0, 0, now\n"},
	{"take", "newer(spent, fspent), newer(back, fback), newer(void, fvoid)", "newer(spent, fspent), newer(back, fback), void"},
	{"take", "if body and ends(id, body) <= now then body = nil end", "if body and ends(id, body) < now then body = nil end"},
	{"take", "ends(id, floor) <= now", "ends(id, floor) < now"},
	{"take", "if stop > last then last = stop end", ""},
	{"take", "if not (allowed or learned) then", "if not allowed then"},
	{"take", "if not (allowed or learned) then return '0' .. stored end", ""},
	{"take", "allowed and charged or joined", "charged"},
	{"take", "if fence or entries > mine then", "if fence then"},
	{"take", "last = math.max(last, stop)", ""},
	{"take", "/ 1000) + 1000)", "/ 1000))"},
	{"take", "'PX'", "'EX'"},

	{"refund", "if reset ~= mark then return body end", ""},
	{"refund", "math.min(spent, back + amount)", "back + amount"},
	{"refund", "if position > spent or", "if"},
	{"refund", "or position <= void", ""},
	{"refund", "if c >= MAX_CREDIT then return body end", ""},
	{"refund", "/ precision + 1", "/ precision"},
	{"refund", "if position > spent or position <= void", "if position > spent or position < void"},
	{"refund", " or less(a, af, mark, mark_frac)", ""},
	{"refund", "left = left - math.max(now, seen)", ""},
	{"refund", "left = left - math.max(now, seen)", "left = left - now"},
	{"refund", "full <= seen or", ""},
	{"refund", "if less(us, frac, left, left_frac) then left, left_frac = us, frac end", ""},
	{"refund", "if left < 0 then return body end", ""},
	{"refund", "cf = math.min(cf, rate - 1)", ""},

	{"reset", "if owed < at then owed, owed_frac = at, 0 end", ""},
	{"reset", "if owed < at then owed, owed_frac = at, 0 end", "if owed < at then return body end"},
	{"reset", "local at = math.max(now, seen)", "local at = now"},
	{"reset", "format_sliding(stop, spent, spent, spent)", "format_sliding(stop, spent, spent, {0})"},
	{"reset", "if c >= MAX_CREDIT then return body end", ""},
	{"reset", "count(spent, spent, spent)", "count(spent, spent, 0)"},
	{"reset", "cf = math.min(cf, rate - 1)", ""},
	{"reset", "count(spent, math.min(spent, back + amount), void)", "count(spent, back + amount, void)"},
	{"reset", "count(spent, math.min(spent, back + amount), void)", "count(spent, math.min(spent, amount), void)"},
	{"reset", "count(spent, math.min(spent, back + amount), void)", "count(spent, math.min(spent, back + amount), 0)"},
	{"reset", "count(spent, math.min(spent, back + amount), void)", "count(spent, math.min(spent, back + amount), spent)"},
	{"reset", "math.min(amount, spent[j] - back[j])", "math.min(amount, spent[j])"},
	{"reset", "math.min(amount, spent[j] - back[j])", "spent[j] - back[j]"},
	{"reset", "for j = 1, #spent do", "for j = #spent, 1, -1 do"},
	{"reset", "back[j] + given, amount - given", "back[j] + given, amount"},
	{"reset", "if us >= 0 and less(us, frac, owed, owed_frac) then owed, owed_frac = us, frac end", ""},
	{"reset", "less(us, frac, owed, owed_frac)", "us < owed"},
	{"reset", "if us >= 0 and less", "if less"},
}

var mutantsOf = flag.String("mutants.of", "", "only mutants of this script")

// TestMutants runs the scripts with one mistake at a time: all of them in the long tier, some otherwise.
func TestMutants(t *testing.T) {
	t.Parallel()
	const most = 6000 // histories for one mutant
	server := testserver.Redis(t)
	list := slices.Concat(mutants, chargeMutants, plainMutants, moveMutants)
	if *mutantsOf != "" {
		list = slices.DeleteFunc(list, func(m mutant) bool { return m.script != *mutantsOf })
	} else if n := testtier.Size(12, len(list)); n < len(list) {
		for i := range n {
			list[i] = list[(2*i+1)*len(list)/(2*n)]
		}
		list = list[:n]
	}
	work := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		spoiler := &spoiler{}
		arena := newArena(t, server, spoiler)
		arena.thorough = true
		wg.Go(func() {
			for i := range work {
				m, draw := list[i], drawHistory
				if strings.HasPrefix(m.script, scripts.Takes.Name) || m.script == scripts.TakeOne.Name {
					draw = drawPlainHistory
				}
				name := strings.ReplaceAll(m.script+": "+m.old+" -> "+m.new, "\n", " ")
				if !spoiler.spoil(m.script, m.old, m.new) {
					t.Errorf("%s: not found in the script", name)
					continue
				}
				n := uint64(1)
				for ; n <= most; n++ {
					if run := arena.run(draw(7, n)); run.err != nil {
						break
					}
				}
				if n > most {
					t.Errorf("survives: %s", name)
				} else if testing.Verbose() {
					t.Logf("history %4d: %s", n, name)
				}
			}
		})
	}
	for i := range list {
		work <- i
	}
	close(work)
	wg.Wait()
}

// spoiler sends another script than the one that is called.
type spoiler struct {
	mu sync.Mutex        // guards all below
	by map[string]string // SHA and source, of the script that replaces it
}

func (s *spoiler) spoil(name, old, new string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by = make(map[string]string)
	for _, script := range scripts.All {
		if name != "" && name != script.Name || !strings.Contains(script.Source, old) {
			continue
		}
		source := strings.Replace(script.Source, old, new, 1)
		sum := sha1.Sum([]byte(source))
		s.by[script.SHA], s.by[script.Source] = hex.EncodeToString(sum[:]), source
	}
	return len(s.by) > 0
}

func (s *spoiler) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (s *spoiler) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); slices.Contains([]string{"evalsha", "eval"}, cmd.Name()) {
			s.mu.Lock()
			if by, ok := s.by[args[1].(string)]; ok {
				args[1] = by
			}
			s.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (s *spoiler) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
