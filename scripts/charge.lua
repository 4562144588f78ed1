-- charge: count a cost that was spent without a take, for several keys under one policy, whether or not a limit has room.
--
-- KEYS     the keys' states, of one server: a Redis Cluster would refuse keys of different slots
-- ARGV[1]  now, Unix us
-- ARGV[2]  under a move, its mover ('m' or 't'), and then version, step, until when a fence is kept (Unix ms): see enter in
--          state.lua; else '', 0, 0, 0
-- ARGV[6]  how many limits
-- then for each limit, by the first letter of its id
--   f a g  id, window (ms)
--   s      id, precision (ms), sub-buckets in the window
--   b      id, rate
-- then for each key its cost, its floor, which may be empty, and for each limit
--   f a g  the end of the window that is charged (Unix ms); without a mark the negative reset of a window that starts now
--   s      the end of the sub-bucket that is charged (Unix ms); without a mark the negative end of that of now
--   b      when the work was admitted (Unix us), time that cost refills in (us, 1/rate us)
--
-- Reply    of one key '1' and the state after the charge. Of several one text: for each key a space, then '1' and the state, or
--          '-' and its error, with tabs for spaces.
-- Errors   CORRUPT: the stored value, or the floor, is no state. SEALED m n: the key has moved under version n of m. FLOOR:
--          the key has not been adopted here under the request's version. Nothing is written to the key.
--
-- The same as state.State.Arrive and state.State.Charge; a test holds them equal.

local MAX_USED, MAX_WINDOW = 70368744177664, 316224000000000 -- of a sub-bucket; of a bucket, us

local function charge_fixed(body, cost, mark, window)
  if mark > 0 and mark * 1000 <= now then return body end
  local reset, spent, back, void = math.abs(mark), 0, 0, 0
  if body then
    local stop, s, b, v = match(body, '^(%d+),' .. COUNT .. '$')
    stop, s, b, v = tonumber(stop), tonumber(s), tonumber(b) or 0, tonumber(v) or 0
    if mark <= stop then
      if mark > 0 and stop - mark >= window then return body end
      reset, spent, back, void = stop, s, b, v
    elseif mark - stop < window then -- a floor of an empty window that is later
      spent = s - b
    end
  end
  spent = math.min(spent, MAX_COUNT - cost) + cost
  return format('%.0f,%s', reset, count(spent, back, void))
end

local function charge_sliding(body, cost, mark, precision, size)
  if mark > 0 and mark * 1000 <= now then return body end
  local fresh = math.abs(mark)
  local stop, spent, back, void = fresh, {0}, {0}, {0}
  if body then
    local s, b, v
    stop, s, b, v = parse_sliding(body)
    local step = (fresh - stop) / precision
    if step <= 0 then
      spent, back, void = s, b, v
    else
      stop = fresh
      for j = 2, math.min(step, size) do spent[j], back[j], void[j] = 0, 0, 0 end
      for j = 1, math.min(#s, size - step) do spent[j + step], back[j + step], void[j + step] = s[j], b[j], v[j] end
    end
  end
  local j = mark > 0 and (stop - mark) / precision + 1 or 1
  if j > size then return body end
  for i = #spent + 1, j do spent[i], back[i], void[i] = 0, 0, 0 end
  spent[j] = spent[j] + math.max(0, math.min(cost, MAX_USED - (spent[j] - back[j]), MAX_COUNT - spent[j]))
  return format_sliding(stop, spent, back, void)
end

local function charge_bucket(body, at, us, frac, rate)
  local a, af, c, cf, p, pf, born, seen = 0, 0, 0, 0, 0, 0, at, at
  if body then a, af, c, cf, p, pf, born, seen = parse_bucket(body) end
  af, cf = math.min(af, rate - 1), math.min(cf, rate - 1) -- the rate may have been larger when they were written
  a, af = minus(a, af, c, cf, rate)
  if less(a, af, at, 0) then a, af = at, 0 end
  local to, to_frac = plus(a, af, us, frac, rate)
  if less(at + MAX_WINDOW, 0, to, to_frac) then
    to, to_frac = at + MAX_WINDOW, 0
    if less(to, to_frac, a, af) then to, to_frac = a, af end
  end
  if less(p, pf, to, to_frac) then p, pf = to, to_frac end
  a, af = plus(to, to_frac, c, cf, rate)
  return format_bucket(a, af, c, cf, p, pf, born, math.max(seen, at))
end

local ids, params, size, arg = {}, {}, {}, 7
for j = 1, tonumber(ARGV[6]) do
  ids[j], params[j] = ARGV[arg], tonumber(ARGV[arg + 1])
  arg = arg + 2
  if byte(ids[j]) == SLIDING then size[j], arg = tonumber(ARGV[arg]), arg + 1 end
end

local moves = ARGV[2] ~= ''
-- Of a single fixed limit, what a state of which nothing was refunded begins with and looks like.
local head = not (moves or ids[2] or size[1] or byte(ids[1]) == BUCKET) and ids[1] .. ':'
local pattern = head and '^' .. head .. '(%d+),(%d+);$'

-- charged_plain is charged for the most common case: a single fixed limit, no floor, and a window that goes on or is the first.
-- It returns nil in any other case.
local function charged_plain(stored, arg)
  local mark = ARGV[arg + 2]
  if ARGV[arg + 1] ~= '' or #stored > #head + 48 or byte(mark) == 45 or mark * 1000 <= now then return nil end
  if stored == '' then return head .. mark .. ',' .. ARGV[arg] .. ';', mark * 1000 end
  local reset, spent = match(stored, pattern)
  if reset ~= mark then return nil end
  return head .. mark .. format(',%.0f;', math.min(spent, MAX_COUNT - ARGV[arg]) + ARGV[arg])
end

-- charged returns the state of a key after a charge whose arguments begin at arg, and when that is over (us), nil if the TTL
-- stays; or nil and the error.
local function charged(stored, arg)
  if head then
    local value, last = charged_plain(stored, arg)
    if value then return value, last end
  end
  local bodies, entries = parse(stored)
  local floors = parse(ARGV[arg + 1])
  if not (bodies and floors) then return nil, 'CORRUPT state' end
  local cost, out, last, mine, fence = tonumber(ARGV[arg]), {}, now, 0, nil
  if moves or bodies[MIGRATION] or bodies[TOPOLOGY] then
    local refusal
    refusal, fence = arrive(bodies, floors, moves and ARGV[2] or MIGRATION, tonumber(ARGV[3]), tonumber(ARGV[4]),
      tonumber(ARGV[5]), true)
    if refusal then return nil, refusal end
  end
  arg = arg + 2
  for j = 1, #ids do
    local id, mark = ids[j], tonumber(ARGV[arg])
    local body, floor, kind = bodies[id], floors[id], byte(id)
    if body then mine = mine + 1 end
    if floor and ends(id, floor) > now then body = join(id, body, floor) end
    if body and ends(id, body) <= (kind == BUCKET and mark or now) then body = nil end -- a late charge meets what was alive then
    if kind == SLIDING then
      body = charge_sliding(body, cost, mark, params[j], size[j])
    elseif kind == BUCKET then
      body, arg = charge_bucket(body, mark, tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]), params[j]), arg + 2
    else
      body = charge_fixed(body, cost, mark, params[j])
    end
    arg = arg + 1
    if body then
      out[j] = id .. ':' .. body .. ';'
      last = math.max(last, ends(id, body))
    else
      out[j] = ''
    end
  end
  if fence or entries > mine then last = append_others(out, last, ids, bodies, fence and floors) end
  return table.concat(out), last
end

local per_key = 2 + #ids
for j = 1, #ids do if byte(ids[j]) == BUCKET then per_key = per_key + 2 end end

-- What is refused for one key must not end the call for others, nor what Lua makes of a key that only looks like a state.
local call = redis.pcall
local replies = {}
for i = 1, #KEYS do
  local stored, failed = call('GET', KEYS[i]) or '', nil
  if stored.err then
    failed = stored.err
  else
    local ran, value, last = pcall(charged, stored, arg + (i - 1) * per_key)
    if not ran then
      failed = 'CORRUPT state'
    elseif not value then
      failed = last
    else
      if value ~= stored and value ~= '' then
        failed = (last and call('SET', KEYS[i], value, 'PX', time_to_live(last, now))
          or call('SET', KEYS[i], value, 'KEEPTTL')).err
      end
      stored = value
    end
  end
  if #KEYS == 1 then return failed and redis.error_reply(failed) or '1' .. stored end
  replies[i] = failed and ' -' .. string.gsub(failed, ' ', '\t') or ' 1' .. stored
end
return table.concat(replies)
