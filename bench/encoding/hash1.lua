-- One fixed limit in a hash: reset, charged, refunded. ARGV: now (us), cost, max, reset of a new window (ms).
local now, cost, max = math.floor(ARGV[1] / 1000), tonumber(ARGV[2]), tonumber(ARGV[3])
local h = redis.call('HMGET', KEYS[1], 'f1m:r', 'f1m:c', 'f1m:f')
local reset, charged, refunded = tonumber(ARGV[4]), 0, 0
if h[1] and tonumber(h[1]) > now then
  reset, charged, refunded = tonumber(h[1]), tonumber(h[2]), tonumber(h[3] or 0)
  if charged - refunded + cost > max then return {0, reset, charged, refunded} end
  charged = redis.call('HINCRBY', KEYS[1], 'f1m:c', cost)
else
  if cost > max then return {0, reset, charged, refunded} end
  charged = cost
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'f1m:r', reset, 'f1m:c', cost)
  redis.call('PEXPIRE', KEYS[1], reset - now + 1000)
end
return {1, reset, charged, refunded}
