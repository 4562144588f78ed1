-- takebucket: take from one key, without a floor, under a policy of one bucket.
--
-- KEYS[1]  the key's state
-- ARGV[1]  the pattern of a state without credit: '^' id ':(%d+)%.?(%d*),(%d+),(%d+);$'
-- ARGV[2]  now, Unix us
-- ARGV[3]  time that the cost refills in: us
-- ARGV[4]  and 1/rate us
-- ARGV[5]  the same of the burst without the cost: us
-- ARGV[6]  and 1/rate us
-- ARGV[7]  rate
--
-- Reply    as of takeone
--
-- Instructions of redis-server a call, counted as in takeone: 70,000, where take needs 156,000. The same as take; a test holds them
-- equal.

local s, now, rate, value = string, tonumber(ARGV[2]), tonumber(ARGV[7]), redis.call('GET', KEYS[1])
-- as in state.lua: peak, arrival and credit, each with its fraction; birth and latest charge
local p, pf, a, af, c, cf, born, seen = 0, 0, 0, 0, 0, 0, now, now
if value and value ~= '' then
  if #value > #ARGV[1] + 122 then return '' end -- it is no state, and nothing to match
  local peak, part, age, idle = s.match(value, ARGV[1])
  local arrival, arrived, credit, paid
  if not peak then
    peak, part, age, idle, arrival, arrived, credit, paid =
      s.match(value, s.sub(ARGV[1], 1, -3) .. ',(%d+)%.?(%d*),(%d+)%.?(%d*);$')
    if not peak then return '' end
  end
  if part == '' and peak + 0 > now or part ~= '' and peak + 1 > now then -- otherwise it is full, and its life over
    p, pf, born, seen = peak + 0, tonumber(part) or 0, peak - age, peak - idle
    a, af = p, pf
    if arrival then a, af, c, cf = arrival + 0, tonumber(arrived) or 0, credit + 0, tonumber(paid) or 0 end
    if seen < now then seen = now end
    if af >= rate then af = rate - 1 end -- the rate may have been larger when they were written
    if cf >= rate then cf = rate - 1 end
    a, af = a - c, af - cf
    if af < 0 then a, af = a - 1, af + rate end
  end
end
if a < now then a, af = now, 0 end
local wait = a - now - ARGV[5]
if wait > 0 or wait == 0 and af > ARGV[6] + 0 then return '0' .. (value or '') end
a, af = a + ARGV[3], af + ARGV[4]
if af >= rate then a, af = a + 1, af - rate end
if p < a or p == a and pf < af then p, pf = a, af end

local life = s.format('%.0f', math.ceil((p + (pf > 0 and 1 or 0) - now) / 1000) + 1000)
value = s.match(ARGV[1], '^%^([^(]+)')
if pf == 0 and c == 0 and cf == 0 then
  value = value .. s.format('%.0f,%.0f,%.0f;', p, p - born, p - seen)
else
  local function span(us, frac) return frac == 0 and s.format('%.0f', us) or s.format('%.0f.%.0f', us, frac) end
  value = value .. span(p, pf) .. s.format(',%.0f,%.0f', p - born, p - seen)
  if c > 0 or cf > 0 then
    a, af = a + c, af + cf
    if af >= rate then a, af = a + 1, af - rate end
    value = value .. ',' .. span(a, af) .. ',' .. span(c, cf)
  end
  value = value .. ';'
end
redis.call('SET', KEYS[1], value, 'PX', life)
return value
