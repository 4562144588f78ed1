-- takes: take from several keys at once, each under the same policy of one fixed limit that isn't staggered. It does what
-- take does, for keys that hold one plain count or nothing; the others it leaves to take.
--
-- KEYS     the keys' states, of one server: a Redis Cluster would refuse keys of different slots
-- ARGV[1]  now, Unix us
-- ARGV[2]  id of the limit
-- ARGV[3]  max
-- ARGV[4]  reset of a window that starts now (Unix ms)
-- ARGV[5]  and on: the cost for each key; none if all cost 1
--
-- Reply    for each key: '1' and the state after the charge, '0' and the state that denied it, or '' where it is for
--          take to say. Nothing was done to those.
--
-- The same as take; a test holds them equal. A batch of 32 costs the server 2.6 us a key, where take costs 10.

local match, format, call = string.match, string.format, redis.call
local now, max, fresh = ARGV[1] / 1000, tonumber(ARGV[3]), ARGV[4]
local head = ARGV[2] .. ':'
local pattern = '^' .. head .. '(%d+),(%d+);$'
local life = format('%.0f', math.ceil(fresh - now) + 1000)
local values, reply = call('MGET', unpack(KEYS)), {}
local written = {} -- by this call: the same key may come twice

for i = 1, #KEYS do
  local key, cost = KEYS[i], tonumber(ARGV[4 + i]) or 1
  local value = written[key] or values[i] or ''
  local reset, used = match(value, pattern)
  if value ~= '' and not reset then
    reply[i] = ''
  else
    local opens = not reset or reset * 1000 <= ARGV[1] + 0
    if opens then reset, used = fresh, 0 end
    if cost > max - used then
      reply[i] = '0' .. value
    else
      value = head .. reset .. ',' .. format('%.0f', used + cost) .. ';'
      local stored = true
      if not opens then
        call('SET', key, value, 'KEEPTTL')
      elseif values[i] then
        call('SET', key, value, 'PX', life)
      else
        stored = written[key] or call('SET', key, value, 'PX', life, 'NX') -- it may be there, as another type
      end
      if stored then written[key] = value end
      reply[i] = stored and '1' .. value or ''
    end
  end
end
return reply
