-- reset: refund what is charged under the limits given: everything, or up to an amount, which is a grant.
--
-- KEYS[1]  the key's state
-- ARGV[1]  now, Unix us
-- then, under a move, its mover ('m' or 't'), version, step (0 or 2): see enter in state.lua
-- then for each limit, by the first letter of its id
--   f a g s  id, amount
--   b        id, time that the amount refills in (us, 1/rate us), rate
-- An amount, or the us of a time, of -1 is everything; the receipts of charges so far are then void.
--
-- Reply    1 if anything was refunded, else 0.
-- Errors   CORRUPT: the stored value is no state. SEALED m n: the key has moved under version n of m. FLOOR: the key has not
--          been adopted here under the request's version. Nothing is written.
--
-- Nothing is deleted and the TTL stays: an older copy that arrives as a floor must meet the refund. The same as
-- state.State.Reset and state.State.Grant; a test holds them equal.

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

local function reset_fixed(body, amount)
  local reset, spent, back, void = match(body, '^(%d+),' .. COUNT .. '$')
  spent, back, void = tonumber(spent), tonumber(back) or 0, tonumber(void) or 0
  if amount < 0 then return reset .. ',' .. count(spent, spent, spent) end
  return reset .. ',' .. count(spent, math.min(spent, back + amount), void)
end

local function reset_sliding(body, amount)
  local stop, spent, back, void = parse_sliding(body)
  if amount < 0 then return format_sliding(stop, spent, spent, spent) end
  for j = 1, #spent do -- the newest first: it counts the longest
    local given = math.min(amount, spent[j] - back[j])
    back[j], amount = back[j] + given, amount - given
  end
  return format_sliding(stop, spent, back, void)
end

local function reset_bucket(body, us, frac, rate)
  local a, af, c, cf, p, pf, born, seen = parse_bucket(body)
  local at = math.max(now, seen)
  cf = math.min(cf, rate - 1)
  local owed, owed_frac = minus(a, math.min(af, rate - 1), c, cf, rate)
  if owed < at then owed, owed_frac = at, 0 end
  owed = owed - at
  if us >= 0 and less(us, frac, owed, owed_frac) then owed, owed_frac = us, frac end
  c, cf = plus(c, cf, owed, owed_frac, rate)
  if c >= MAX_CREDIT then return body end
  return format_bucket(a, af, c, cf, p, pf, born, seen)
end

local i = first
while ARGV[i] do
  local id = ARGV[i]
  local body, kind = bodies[id], byte(id)
  if body and ends(id, body) <= now then body = nil end
  if kind == SLIDING then
    bodies[id] = body and reset_sliding(body, tonumber(ARGV[i + 1]))
    i = i + 2
  elseif kind == BUCKET then
    bodies[id] = body and reset_bucket(body, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
    i = i + 4
  else
    bodies[id] = body and reset_fixed(body, tonumber(ARGV[i + 1]))
    i = i + 2
  end
end
return store(stored, bodies)
