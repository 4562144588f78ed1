-- Three limits in a hash, a field for each count and sub-bucket.
-- ARGV: now (us), cost, then for each limit: id, max, reset of a new window (ms) or the precision of a sliding one.
local now, cost, size = math.floor(ARGV[1] / 1000), tonumber(ARGV[2]), 60
local h = redis.call('HGETALL', KEYS[1])
local old = {}
for i = 1, #h, 2 do old[h[i]] = h[i + 1] end
local allowed, ttl, drop, set = true, 0, {}, {}
for i = 3, #ARGV, 3 do
  local id, max, x = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  if string.byte(id) == 115 then
    local current, used = math.floor(now / x), 0
    for field, c in pairs(old) do
      if string.byte(field) == 115 then
        if tonumber(string.match(field, '|(%d+)$')) <= current - size then drop[#drop + 1] = field else used = used + c end
      end
    end
    if used + cost > max then allowed = false end
    local field = id .. '|' .. string.format('%.0f', current)
    set[#set + 1], set[#set + 2] = field, (old[field] or 0) + cost
    ttl = math.max(ttl, (current + size) * x - now)
  else
    local reset, charged = x, 0
    if tonumber(old[id .. 'r'] or 0) > now then reset, charged = tonumber(old[id .. 'r']), tonumber(old[id .. 'c']) end
    if charged + cost > max then allowed = false end
    set[#set + 1], set[#set + 2], set[#set + 3], set[#set + 4] = id .. 'r', reset, id .. 'c', charged + cost
    ttl = math.max(ttl, reset - now)
  end
end
if not allowed then return {0, h} end
redis.call('HSET', KEYS[1], unpack(set))
if #drop > 0 then redis.call('HDEL', KEYS[1], unpack(drop)) end
redis.call('PEXPIRE', KEYS[1], ttl + 1000)
return {1, h}
