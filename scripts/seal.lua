-- seal: freeze a key's state because the key is handed over, and return it.
--
-- KEYS[1]  the key's state; a key that isn't there is sealed, too
-- ARGV[1]  now, Unix us
-- ARGV[2]  the mover: 'm' or 't'
-- ARGV[3]  the version of the move
-- ARGV[4]  until when the fence is kept, Unix ms
--
-- Reply    the state, the fence included. A state that is sealed under this version stays as it is.
-- Errors   SEALED m n: the key was adopted here under this version or a newer one, or sealed under a newer one, which
--          is n of the mover m; or it has left this place under a topology. CORRUPT: the stored value is no state. Nothing is written.
--
-- The same as state.State.Seal; a test holds them equal.

local now, mover, version = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local stored = redis.call('GET', KEYS[1]) or ''
local bodies = parse(stored)
if not bodies then return redis.error_reply('CORRUPT state') end

local stop, adopted, sealed = parse_fence(bodies[TOPOLOGY], now)
if mover ~= TOPOLOGY then
  local refusal = frozen(TOPOLOGY, adopted, sealed, 0)
  if refusal then return redis.error_reply(refusal) end
  stop, adopted, sealed = parse_fence(bodies[mover], now)
end
if adopted >= version or sealed > version then
  return redis.error_reply(format('SEALED %s %.0f', mover, math.max(adopted, sealed)))
end
if sealed == version then return stored end

bodies[mover] = format_fence(math.max(stop, tonumber(ARGV[4])), adopted, version)
local out, last = {}, now
for id, body in pairs(bodies) do
  local over = ends(id, body)
  if over > now then
    out[#out + 1] = id .. ':' .. body .. ';'
    last = math.max(last, over)
  end
end
local value = table.concat(out)
redis.call('SET', KEYS[1], value, 'PX', time_to_live(last, now))
return value
