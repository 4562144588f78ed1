-- take: check a cost against every limit of a policy and, if all admit it, charge all of them.
--
-- KEYS[1]  the key's state
-- ARGV[1]  now, Unix us
-- ARGV[2]  cost; 0 only merges the floor
-- ARGV[3]  floor: the state of the key as the caller knows it; may be empty
-- then, under a move, its mover ('m' or 't'), version, step, until when a fence is kept (Unix ms): see enter in state.lua
-- then for each limit, by the first letter of its id
--   f a g  id, max, reset of a window that starts now (Unix ms)
--   s      id, max, end of the sub-bucket of now (Unix ms), precision (ms), sub-buckets in the window
--   b      id, time that cost refills in (us, 1/rate us), time that the burst refills in (us, 1/rate us), rate
--
-- Reply    '1' and the state after the charge, or '0' and the state that denied it. A denied take only
--          merges the floor.
-- Errors   CORRUPT: the stored value, or the floor, is no state. SEALED m n: the key has moved under version n of m. FLOOR:
--          the key has not been adopted here under the request's version. Nothing is written.
--
-- Source: Josiah Carlson, "Introduction to rate limiting with Redis": all limits checked before any is charged.
-- The same as state.State.Arrive and state.State.Take; a test holds them equal.

local cost = tonumber(ARGV[2])
local stored = redis.call('GET', KEYS[1]) or ''
local bodies, entries = parse(stored)
local floors = parse(ARGV[3])
if not (bodies and floors) then return redis.error_reply('CORRUPT state') end

local allowed = cost > 0

local first, mover, fence = 4, MOVERS[ARGV[4]] and ARGV[4], nil
if mover or bodies[MIGRATION] or bodies[TOPOLOGY] then
  local version, step, keep, refusal = 0, 0, 0, nil
  if mover then first, version, step, keep = 8, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]) end
  refusal, fence = arrive(bodies, floors, mover or MIGRATION, version, step, keep, cost > 0)
  if refusal then return redis.error_reply(refusal) end
end
if fence then learned = true end

-- Each take_* gets a body, nil for none. It returns the body to store if the request is admitted, and when that is over
-- (us).

local function take_fixed(body, max, fresh)
  local reset, spent, back, void = fresh, 0, 0, 0
  if body then
    reset, spent, back, void = match(body, '^(%d+),' .. COUNT .. '$')
    spent, back, void = tonumber(spent), tonumber(back) or 0, tonumber(void) or 0
  end
  if cost > max - (spent - back) or cost > MAX_COUNT - spent then allowed = false end
  return reset .. ',' .. count(spent + cost, back, void), reset * 1000
end

local function take_sliding(body, max, fresh, precision, size)
  local stop, spent, back, void = fresh, {}, {}, {}
  if body then -- the common case: the newest sub-bucket goes on
    local stop, used, spent, back, void, rest = match(body, '^(%d+),(%d+),' .. COUNT .. '(.*)$')
    if tonumber(stop) >= fresh then
      if cost > max - used or cost > MAX_COUNT - spent then allowed = false end
      spent = count(spent + cost, tonumber(back) or 0, tonumber(void) or 0)
      return stop .. ',' .. format('%.0f,', used + cost) .. spent .. rest, stop * 1000
    end
  end
  if body then stop, spent, back, void = parse_sliding(body) end
  local step = (fresh - stop) / precision
  local ns, nb, nv, used = {0}, {0}, {0}, 0
  for j = 2, step do ns[j], nb[j], nv[j] = 0, 0, 0 end
  for j = 1, math.min(#spent, size - step) do
    ns[j + step], nb[j + step], nv[j + step] = spent[j], back[j], void[j]
    used = used + (spent[j] - back[j])
  end
  if cost > max - used then allowed = false end
  ns[1] = ns[1] + cost
  return format_sliding(fresh, ns, nb, nv), fresh * 1000
end

local function take_bucket(body, us, frac, burst_us, burst_frac, rate)
  local a, af, c, cf, p, pf, born, seen = 0, 0, 0, 0, 0, 0, now, now
  if body then a, af, c, cf, p, pf, born, seen = parse_bucket(body) end
  af, cf = math.min(af, rate - 1), math.min(cf, rate - 1) -- the rate may have been larger when they were written
  a, af = minus(a, af, c, cf, rate)
  if less(a, af, now, 0) then a, af = now, 0 end
  a, af = plus(a, af, us, frac, rate)
  local wait, wait_frac = minus(a - now, af, burst_us, burst_frac, rate)
  if wait > 0 or wait == 0 and wait_frac > 0 then allowed = false end
  if less(p, pf, a, af) then p, pf = a, af end
  a, af = plus(a, af, c, cf, rate)
  return format_bucket(a, af, c, cf, p, pf, born, math.max(seen, now)), pf > 0 and p + 1 or p
end

local ids, charged, joined, last, n, i = {}, {}, {}, now, 0, first
local mine = 0 -- of the stored entries
while ARGV[i] do
  local id, stop = ARGV[i], nil
  local kind = byte(id)
  if bodies[id] then mine = mine + 1 end
  local body = join(id, bodies[id], floors[id])
  n = n + 1
  ids[n], joined[n] = id, body
  if kind == SLIDING then
    charged[n], stop = take_sliding(body, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4]))
    i = i + 5
  elseif kind == BUCKET then
    charged[n], stop = take_bucket(body, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]))
    i = i + 6
  else
    charged[n], stop = take_fixed(body, tonumber(ARGV[i + 1]), ARGV[i + 2])
    i = i + 3
  end
  if stop > last then last = stop end
end

if not (allowed or learned) then return '0' .. stored end

local chosen = allowed and charged or joined
local out = {}
for j = 1, n do
  if chosen[j] then out[#out + 1] = ids[j] .. ':' .. chosen[j] .. ';' end
end
if fence or entries > mine then last = append_others(out, last, ids, bodies, fence and floors) end
local value = table.concat(out)
redis.call('SET', KEYS[1], value, 'PX', time_to_live(last, now))
return (allowed and '1' or '0') .. value
