-- The encoding of a key's state, as package limit/state writes it (limit/state/codec.go). Every script starts with this part.
--
--   f1m:1795225200123,57-3;              fixed: reset in ms, counts
--   s1h~1m:1795226400000,70,57-3,12,0;   sliding: end in ms, used, counts of each sub-bucket, newest first
--   b1s:1795225200123456.1,700000,100000;             bucket: peak in us and 1/rate us, birth and latest charge in us before it
--   b1s:1795225200123456.1,700000,100000,1795225200123458.1,2.2;    once there is credit: that, arrival, credit
--   m:1795225200123,7,6;                 fence of a migration: end in ms, version adopted, version sealed
--   t:1795225200123,2,0;                 fence of a topology, the same
--
-- Counts are charged, charged-refunded, or charged-refunded-void, void being what a reset gave back.
-- An entry is over from its first number on. Numbers are whole and at most 2^53-1, which Lua's doubles hold; they
-- are written by %.0f, because .. and tostring lose digits past the 14th.

local byte, format, gmatch, match = string.byte, string.format, string.gmatch, string.match
local SLIDING, BUCKET = 115, 98 -- 's', 'b'
local MIGRATION, TOPOLOGY = 'm', 't'
local MOVERS = {m = true, t = true}
local MAX_COUNT = 9007199254740991
local MAX_CREDIT = 4503599627370496
local COUNT = '(%d+)%-?(%d*)%-?(%d*)'

-- Bounds of a state's bytes and entries, and a run of digits longer than any number in it.
local MAX_TEXT, MAX_ENTRIES, TOO_LONG = 131072, 256, '%f[%d]' .. string.rep('%d', 18)

-- parse returns the bodies of all entries by id, and their number; nil if text is no state. It blocks the server, whatever is
-- stored. So the pattern is anchored: a search would take quadratic time on a foreign value. And long runs of digits are
-- rejected: COUNT would take cubic time on them, because it tries all ways to divide the digits among its parts.
local function parse(text)
  if #text > MAX_TEXT or string.find(text, TOO_LONG) then return nil end
  local bodies, n, i = {}, 0, 1
  while i <= #text do
    local id, body, next = match(text, '^([fagsbmt][%w~]*):(%d[%d,.-]*);()', i)
    if not id or n == MAX_ENTRIES then return nil end
    bodies[id], n, i = body, n + 1, next
  end
  return bodies, n
end

-- ends returns when an entry is over, in us.
local function ends(id, body)
  local first, frac = match(body, '^(%d+)(%.?)')
  if byte(id) ~= BUCKET then return first * 1000 end
  return frac == '' and tonumber(first) or first + 1
end

-- count formats counts.
local function count(charged, refunded, void)
  if refunded == 0 then return format('%.0f', charged) end
  if void == 0 then return format('%.0f-%.0f', charged, refunded) end
  return format('%.0f-%.0f-%.0f', charged, refunded, void)
end

-- parse_sliding returns end, and the counts of each sub-bucket, newest first.
local function parse_sliding(body)
  local stop, list = match(body, '^(%d+),%d+(.*)$')
  local charged, refunded, void = {}, {}, {}
  for c, r, v in gmatch(list, ',' .. COUNT) do
    local j = #charged + 1
    charged[j], refunded[j], void[j] = tonumber(c), tonumber(r) or 0, tonumber(v) or 0
  end
  return tonumber(stop), charged, refunded, void
end

-- format_sliding is the inverse; it drops sub-buckets from the old end that were never charged.
local function format_sliding(stop, charged, refunded, void)
  local n, used, list = #charged, 0, {}
  while n > 1 and charged[n] == 0 do n = n - 1 end
  for j = 1, n do
    used = used + (charged[j] - refunded[j]) -- in this order: charged alone may be near the largest number
    list[j] = count(charged[j], refunded[j], void[j])
  end
  return format('%.0f,%.0f,%s', stop, used, table.concat(list, ','))
end

-- parse_bucket returns arrival, credit and peak, each in us and 1/rate us, then birth and latest charge in us.
local function parse_bucket(body)
  local p, pf, born, seen, a, af, c, cf = match(body,
    '^(%d+)%.?(%d*),(%d+),(%d+),?(%d*)%.?(%d*),?(%d*)%.?(%d*)$')
  p, pf = tonumber(p), tonumber(pf) or 0
  if a == '' then return p, pf, 0, 0, p, pf, p - born, p - seen end
  return tonumber(a), tonumber(af) or 0, tonumber(c), tonumber(cf) or 0, p, pf, p - born, p - seen
end

local function span(us, frac)
  if frac == 0 then return format('%.0f', us) end
  return format('%.0f.%.0f', us, frac)
end

local function format_bucket(a, af, c, cf, p, pf, born, seen)
  local life = format('%s,%.0f,%.0f', span(p, pf), p - born, p - seen)
  if c == 0 and cf == 0 then return life end
  return format('%s,%s,%s', life, span(a, af), span(c, cf))
end

-- parse_fence returns the end of a fence (ms), the version adopted and the version sealed; zeros once it is over.
local function parse_fence(body, now)
  if not body then return 0, 0, 0 end
  local stop, adopted, sealed = match(body, '^(%d+),(%d+),(%d+)$')
  if stop * 1000 <= now then return 0, 0, 0 end
  return tonumber(stop), tonumber(adopted), tonumber(sealed)
end

local function format_fence(stop, adopted, sealed)
  return format('%.0f,%.0f,%.0f', stop, adopted, sealed)
end

-- frozen returns the error for a request under a version at a place that the key has left; otherwise nil.
local function frozen(mover, adopted, sealed, version)
  if sealed > adopted and version <= sealed then return format('SEALED %s %.0f', mover, sealed) end
end

-- enter checks a request that acts under a move: its mover, its version (0 for none), its step (0 ask, 1 adopt, 2 without floor),
-- until when a fence is kept (ms), and whether it charges or refunds. It returns the error, nil if the request is admitted, and
-- the fence to store, nil if it is unchanged. The same as state.State.Enter.
local function enter(bodies, now, mover, version, step, keep, charges)
  local stop, adopted, sealed = parse_fence(bodies[MIGRATION], now)
  local tstop, tadopted, tsealed = parse_fence(bodies[TOPOLOGY], now)
  local refusal
  if mover == TOPOLOGY then
    refusal = frozen(TOPOLOGY, tadopted, tsealed, version) or charges and frozen(MIGRATION, adopted, sealed, 0)
    stop, adopted, sealed = tstop, tadopted, tsealed
  else
    refusal = frozen(TOPOLOGY, tadopted, tsealed, 0) or frozen(MIGRATION, adopted, sealed, version)
  end
  if refusal then return refusal end
  if version <= adopted or step == 2 then return nil end
  if step == 0 then return 'FLOOR wanted' end
  return nil, format_fence(math.max(stop, keep), version, sealed)
end

-- plus and minus work on times of us and 1/rate us.
local function plus(us, frac, dus, dfrac, rate)
  us, frac = us + dus, frac + dfrac
  if frac >= rate then return us + 1, frac - rate end
  return us, frac
end

local function minus(us, frac, dus, dfrac, rate)
  us, frac = us - dus, frac - dfrac
  if frac < 0 then return us - 1, frac + rate end
  return us, frac
end

local function less(us, frac, ous, ofrac)
  return us < ous or us == ous and frac < ofrac
end

-- time_to_live is for SET PX: cleaning may come a second after the last entry is over.
local function time_to_live(last, now)
  return format('%.0f', math.ceil((last - now) / 1000) + 1000)
end

-- store writes the bodies back in their stored order, with the same TTL. It omits expired ones, which are false in bodies. It
-- returns 1 if that changed anything.
local function store(stored, bodies)
  local out = {}
  for id in gmatch(stored, '([^:]+):[^;]+;') do
    if bodies[id] then out[#out + 1] = id .. ':' .. bodies[id] .. ';' end
  end
  local value = table.concat(out)
  if value == stored or value == '' then return 0 end
  redis.call('SET', KEYS[1], value, 'KEEPTTL')
  return 1
end
