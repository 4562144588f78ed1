-- Three limits as text, the sum and the newest sub-bucket in front. ARGV as in hash3.lua.
local now, cost, size = math.floor(ARGV[1] / 1000), tonumber(ARGV[2]), 60
local v = redis.call('GET', KEYS[1])
local old = {}
if v then for id, body in string.gmatch(v, '([^:]+):([^;]*);') do old[id] = body end end
local out, n, allowed, ttl = {}, 0, '1', 0
for i = 3, #ARGV, 3 do
  local id, max, x = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local body = old[id]
  n = n + 1
  if string.byte(id) == 115 then
    local stop, used, charged, refunded, rest = (math.floor(now / x) + size) * x, 0, 0, 0, ''
    if body then
      local e, u, c, r, tail = string.match(body, '^(%d+),(%d+),(%d+)%-?(%d*)(.*)$')
      local step = (stop - e) / x
      if step <= 0 then
        stop, used, charged, refunded, rest = tonumber(e), tonumber(u), tonumber(c), tonumber(r) or 0, tail
      else
        local list = {}
        for s in string.gmatch(string.rep(',0', step - 1) .. string.match(body, '^%d+,%d+(.*)$'), '[^,]+') do
          if #list < size - 1 then
            list[#list + 1] = s
            local sc, sr = string.match(s, '^(%d+)%-?(%d*)$')
            used = used + sc - (tonumber(sr) or 0)
          end
        end
        if #list > 0 then rest = ',' .. table.concat(list, ',') end
      end
    end
    if used + cost > max then allowed = '0' end
    local count = string.format('%.0f', charged + cost)
    if refunded > 0 then count = count .. string.format('-%.0f', refunded) end
    out[n] = string.format('%s:%.0f,%.0f,%s%s;', id, stop, used + cost, count, rest)
    ttl = math.max(ttl, stop - now)
  else
    local reset, charged, refunded = ARGV[i + 2], 0, 0
    if body then
      local r, c, f = string.match(body, '^(%d+),(%d+)%-?(%d*)$')
      if tonumber(r) > now then reset, charged, refunded = r, tonumber(c), tonumber(f) or 0 end
    end
    if charged - refunded + cost > max then allowed = '0' end
    local count = string.format('%.0f', charged + cost)
    if refunded > 0 then count = count .. string.format('-%.0f', refunded) end
    out[n] = id .. ':' .. reset .. ',' .. count .. ';'
    ttl = math.max(ttl, reset - now)
  end
end
if allowed == '0' then return allowed .. v end
v = table.concat(out)
redis.call('SET', KEYS[1], v, 'PX', ttl + 1000)
return allowed .. v
