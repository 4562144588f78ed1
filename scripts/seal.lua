-- seal: freeze a key's state because the key moves elsewhere, and return it.
--
-- KEYS[1]  the key's state; a key that isn't there is sealed, too
-- ARGV[1]  now, Unix us
-- ARGV[2]  the version of the move
-- ARGV[3]  until when the stamp is kept, Unix ms
--
-- Reply    the state, the stamp included. A state that is sealed under this version stays as it is.
-- Errors   SEALED n: the key was adopted here under this version or a newer one, or sealed under a newer one, which
--          is n. CORRUPT: the stored value is no state. Nothing is written.
--
-- The same as limit.State.Seal; a test holds them equal.

local now, version = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored = redis.call('GET', KEYS[1]) or ''
local bodies = parse(stored)
if not bodies then return redis.error_reply('CORRUPT state') end

local stop, adopted, sealed = parse_stamp(bodies[STAMP], now)
if adopted >= version or sealed > version then
  return redis.error_reply(format('SEALED %.0f', math.max(adopted, sealed)))
end
if sealed == version then return stored end

bodies[STAMP] = format_stamp(math.max(stop, tonumber(ARGV[3])), adopted, version)
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
