-- Three limits packed, each sub-bucket a record of index, charged, refunded. ARGV as in hash3.lua.
local now, cost, size = math.floor(ARGV[1] / 1000), tonumber(ARGV[2]), 60
local v = redis.call('GET', KEYS[1])
local pos, length = 1, v and #v or 0
local out, n, allowed, ttl = {}, 0, '1', 0
for i = 3, #ARGV, 3 do
  local id, max, x = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  n = n + 1
  if string.byte(id) == 115 then
    local current = math.floor(now / x)
    local records, m, used, charged, refunded = {}, 0, 0, 0, 0
    if pos <= length then
      local count
      count, pos = struct.unpack('>B', v, pos)
      for _ = 1, count do
        local index, c, r
        index, c, r, pos = struct.unpack('>I5I4I4', v, pos)
        if index == current then
          charged, refunded = c, r
          used = used + c - r
        elseif index > current - size then
          m = m + 1
          records[m] = string.sub(v, pos - 13, pos - 1)
          used = used + c - r
        end
      end
    end
    m = m + 1
    records[m] = struct.pack('>I5I4I4', current, charged + cost, refunded)
    if used + cost > max then allowed = '0' end
    out[n] = struct.pack('>B', m) .. table.concat(records)
    ttl = math.max(ttl, (current + size) * x - now)
  else
    local reset, charged, refunded = x, 0, 0
    if pos <= length then
      local r, c, f
      r, c, f, pos = struct.unpack('>I6I7I7', v, pos)
      if r > now then reset, charged, refunded = r, c, f end
    end
    if charged - refunded + cost > max then allowed = '0' end
    out[n] = struct.pack('>I6I7I7', reset, charged + cost, refunded)
    ttl = math.max(ttl, reset - now)
  end
end
if allowed == '0' then return allowed .. v end
v = table.concat(out)
redis.call('SET', KEYS[1], v, 'PX', ttl + 1000)
return allowed .. v
