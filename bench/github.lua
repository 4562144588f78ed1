-- Count one client's request and return the count and when its window ends: two keys, the second one derived.
-- The algorithm of GitHub's article, rewritten; it makes the same calls in the same order.
--
-- KEYS[1]  the count; its window's end is at KEYS[1]:exp
-- ARGV     by how much, end of a window that begins now (Unix s), now (Unix s)
local counter, ends = KEYS[1], KEYS[1] .. ':exp'
local fresh, now = tonumber(ARGV[2]), tonumber(ARGV[3])

local stop = tonumber(redis.call('get', ends))
if not stop or stop < now then
  redis.call('set', counter, 0)
  redis.call('set', ends, fresh)
  redis.call('expireat', counter, fresh + 1)
  redis.call('expireat', ends, fresh + 1)
  stop = fresh
end
return {redis.call('incrby', counter, tonumber(ARGV[1])), stop}
