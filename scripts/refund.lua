-- refund: refund part of one charge, window by window.
--
-- KEYS[1]  the key's state
-- ARGV[1]  now, Unix us
-- then, under a move, its mover ('m' or 't'), version, step (0 or 2): see enter in state.lua
-- then for each limit whose charge is not over, by the first letter of its id
--   f a g  id, amount, reset of the window that was charged (Unix ms), charged there after the charge
--   s      id, amount, end of the sub-bucket that was charged (Unix ms), charged there after the charge, precision (ms)
--   b      id, time that amount refills in (us, 1/rate us), arrival time after the charge (us, 1/rate us), rate, when the
--          bucket was to be full after the charge (us)
--
-- Reply    1 if the state changed, else 0: the windows are over, or the charge is not known here.
-- Errors   CORRUPT: the stored value is no state. SEALED m n: the key has moved under version n of m. FLOOR: the key has not
--          been adopted here under the request's version. Nothing is written.
--
-- The TTL stays: the state must outlive every copy that lacks the refund. The same as
-- state.State.Refund; a test holds them equal.

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

-- given returns the new refunded count. It is unchanged if the charge is not known here, or was voided by a reset.
local function given(spent, back, void, amount, position)
  if position > spent or position <= void then return back end
  return math.min(spent, back + amount)
end

local function refund_fixed(body, amount, mark, position)
  local reset, spent, back, void = match(body, '^(%d+),' .. COUNT .. '$')
  if reset ~= mark then return body end
  spent, back, void = tonumber(spent), tonumber(back) or 0, tonumber(void) or 0
  return reset .. ',' .. count(spent, given(spent, back, void, amount, position), void)
end

local function refund_sliding(body, amount, mark, position, precision)
  local stop, spent, back, void = parse_sliding(body)
  local j = (stop - mark) / precision + 1
  if not spent[j] then return body end
  back[j] = given(spent[j], back[j], void[j], amount, position)
  return format_sliding(stop, spent, back, void)
end

local function refund_bucket(body, us, frac, mark, mark_frac, rate, full)
  local a, af, c, cf, p, pf, born, seen = parse_bucket(body)
  if full <= seen or less(a, af, mark, mark_frac) then return body end
  cf = math.min(cf, rate - 1)
  local left, left_frac = minus(mark, math.min(mark_frac, rate - 1), c, cf, rate)
  left = left - math.max(now, seen)
  if less(us, frac, left, left_frac) then left, left_frac = us, frac end
  if left < 0 then return body end
  c, cf = plus(c, cf, left, left_frac, rate)
  if c >= MAX_CREDIT then return body end
  return format_bucket(a, af, c, cf, p, pf, born, seen)
end

local i = first
while ARGV[i] do
  local id = ARGV[i]
  local body, kind = bodies[id], byte(id)
  if body and ends(id, body) <= now then body = nil end
  if kind == SLIDING then
    bodies[id] = body and refund_sliding(body, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4]))
    i = i + 5
  elseif kind == BUCKET then
    bodies[id] = body and refund_bucket(body, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]))
    i = i + 7
  else
    bodies[id] = body and refund_fixed(body, tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 3]))
    i = i + 4
  end
end
return store(stored, bodies)
