-- One fixed limit packed: id, reset, charged, refunded. ARGV: now (us), cost, max, reset of a new window (ms).
local now, cost, max = math.floor(ARGV[1] / 1000), tonumber(ARGV[2]), tonumber(ARGV[3])
local v = redis.call('GET', KEYS[1])
local reset, charged, refunded = tonumber(ARGV[4]), 0, 0
if v then
  local id, r, c, f = struct.unpack('>c3I6I7I7', v)
  if id == 'f1m' and r > now then reset, charged, refunded = r, c, f end
end
if charged - refunded + cost > max then return '0' .. v end
v = struct.pack('>c3I6I7I7', 'f1m', reset, charged + cost, refunded)
redis.call('SET', KEYS[1], v, 'PX', reset - now + 1000)
return '1' .. v
