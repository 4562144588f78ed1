-- One fixed limit as text. ARGV: now (us), cost, max, reset of a new window (ms).
local now, cost, max = math.floor(ARGV[1] / 1000), tonumber(ARGV[2]), tonumber(ARGV[3])
local v = redis.call('GET', KEYS[1])
local reset, charged, refunded = ARGV[4], 0, 0
if v then
  local r, c, f = string.match(v, '^f1m:(%d+),(%d+)%-?(%d*);')
  if tonumber(r) > now then reset, charged, refunded = r, tonumber(c), tonumber(f) or 0 end
end
if charged - refunded + cost > max then return '0' .. v end
v = string.format('f1m:%s,%.0f', reset, charged + cost)
if refunded > 0 then v = v .. string.format('-%.0f', refunded) end
v = v .. ';'
redis.call('SET', KEYS[1], v, 'PX', reset - now + 1000)
return '1' .. v
