-- Check several limits for several keys, then charge all: 1 if one is exceeded, 0 if the request was counted.
-- The algorithm of Josiah Carlson's over_limit_sliding_window_lua, rewritten; it makes the same calls in the same
-- order, and needed no change to run. Even what is wrong with it is left: the oldest sub-bucket known is compared
-- with the time in seconds, though it is a number of sub-buckets; and where a sub-bucket is one second, a caller who read
-- its clock just before the second that another has brought along is told that it is over the limit.
--
-- KEYS     a hash for each identifier: for each limit a total, the oldest sub-bucket known, a count for each sub-bucket
-- ARGV[1]  limits as JSON: [[window s, max, width of a sub-bucket s or nothing], ...]
-- ARGV[2]  now, Unix s
-- ARGV[3]  weight
local limits, now, weight = cjson.decode(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3] or '1')
local plans, longest = {}, 0

for i, limit in ipairs(limits) do
  local window, max = limit[1], limit[2]
  local width = math.min(limit[3] or window, window)
  local size, current = math.ceil(window / width), math.floor(now / width)
  local total = window .. ':' .. width .. ':'
  local plan = {total = total, oldest = total .. 'o', first = current - size + 1, current = total .. current}
  plans[i], longest = plan, math.max(longest, window)

  for _, key in ipairs(KEYS) do
    local known = tonumber(redis.call('HGET', key, plan.oldest) or plan.first)
    if known > now then return 1 end

    local sum, stale = 0, {}
    for bucket = known, math.min(plan.first, known + size) - 1 do
      local field = total .. bucket
      local count = redis.call('HGET', key, field)
      if count then
        sum = sum + tonumber(count)
        stale[#stale + 1] = field
      end
    end

    local used
    if #stale > 0 then
      redis.call('HDEL', key, unpack(stale))
      used = redis.call('HINCRBY', key, total, -sum)
    else
      used = redis.call('HGET', key, total)
    end
    if tonumber(used or '0') + weight > max then return 1 end
  end
end

for _, plan in ipairs(plans) do
  for _, key in ipairs(KEYS) do
    redis.call('HSET', key, plan.oldest, plan.first)
    redis.call('HINCRBY', key, plan.total, weight)
    redis.call('HINCRBY', key, plan.current, weight)
  end
end
if longest > 0 then
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, longest) end
end
return 0
