-- reset: refund everything that is charged under the limits given.
--
-- KEYS[1]  the key's state
-- ARGV[1]  now, Unix us
-- then, under a move, its mover ('m' or 't'), version, step (0 or 2): see enter in state.lua
-- then for each limit: id, and for a bucket (b) its rate
--
-- Reply    1 if anything was refunded, else 0.
-- Errors   CORRUPT: the stored value is no state. SEALED m n: the key has moved under version n of m. FLOOR: the key has not
--          been adopted here under the request's version. Nothing is written.
--
-- Nothing is deleted and the TTL stays: an older copy that arrives as a floor must meet the refund. The same as
-- state.State.Reset; a test holds them equal.

local now = tonumber(ARGV[1])
local stored = redis.call('GET', KEYS[1]) or ''
local bodies = parse(stored)
if not bodies then return redis.error_reply('CORRUPT state') end
local first, refusal = 2, nil
if MOVERS[ARGV[2]] then
  first, refusal = 5, enter(bodies, now, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), 0, true)
else
  refusal = enter(bodies, now, MIGRATION, 0, 0, 0, true)
end
if refusal then return redis.error_reply(refusal) end

local function reset_fixed(body)
  local reset, spent = match(body, '^(%d+),(%d+)')
  spent = tonumber(spent)
  return reset .. ',' .. count(spent, spent, spent)
end

local function reset_sliding(body)
  local stop, spent = parse_sliding(body)
  return format_sliding(stop, spent, spent, spent)
end

local function reset_bucket(body, rate)
  local a, af, c, cf, p, pf, born, seen = parse_bucket(body)
  local at = math.max(now, seen)
  cf = math.min(cf, rate - 1)
  local owed, owed_frac = minus(a, math.min(af, rate - 1), c, cf, rate)
  if owed < at then owed, owed_frac = at, 0 end
  c, cf = plus(c, cf, owed - at, owed_frac, rate)
  if c >= MAX_CREDIT then return body end
  return format_bucket(a, af, c, cf, p, pf, born, seen)
end

local i = first
while ARGV[i] do
  local id = ARGV[i]
  local body, kind = bodies[id], byte(id)
  if body and ends(id, body) <= now then body = nil end
  if kind == SLIDING then
    bodies[id] = body and reset_sliding(body)
  elseif kind == BUCKET then
    i = i + 1
    bodies[id] = body and reset_bucket(body, tonumber(ARGV[i]))
  else
    bodies[id] = body and reset_fixed(body)
  end
  i = i + 1
end
return store(stored, bodies)
