-- takeone: take 1 from one key, without a floor, under a policy of one fixed limit or of one sliding one.
--
-- KEYS[1]  the key's state
-- ARGV[1]  the pattern of a state: '^' id, then ':(%d+),()%d+;$', of which nothing was refunded, for a fixed limit, and
--          ':(%d+),()(%d+),(%d+)()' for a sliding one
-- ARGV[2]  now, and the reset of a window, or the end of a sub-bucket, that starts now (Unix ms, 13 digits each), then max
-- ARGV[3]  of a sliding limit: precision (ms)
-- ARGV[4]  of a sliding limit: sub-buckets in the window
--
-- Reply    the state after the charge; or '0' and the state that denied it; or nothing, if the key is left to take and
--          unchanged.
--
-- It is what a server of a large fleet runs most, because each process has one call under way. So it compares numbers of the same
-- length as text, and counts up the last digit: conversions of numbers, strings that Lua has to collect, and arguments are what a
-- script costs. Processor time of redis-server, in instructions a call (callgrind, redis-server 7.0.15): 35,000 under a fixed limit,
-- where takesfixed needs 55,000, a GET and a SET by an otherwise empty script 29,000, and INCRBY and PTTL 34,000. Under a sliding
-- one 48,000, and 62,000 if each call begins a sub-bucket, where takes needs 86,000 and 105,000.
--
-- The same as take; a test holds them equal.

local s, arg, precision = string, ARGV[2], ARGV[3]
local value = redis.call('GET', KEYS[1])

if precision and value and value ~= '' then
  local fresh, size = s.sub(arg, 14, 26), ARGV[4] + 0
  if #value > #ARGV[1] + 48 + 51 * size then return '' end -- it is no state, and nothing to match
  local stop, at, used, newest, tail = s.match(value, ARGV[1])
  if not stop or #stop ~= 13 or tail > #ARGV[1] + 26 or s.find(value, ';', tail, true) ~= #value then return '' end
  if stop >= fresh then -- the newest sub-bucket is the current one
    if used + 1 > s.sub(arg, 27) + 0 or newest + 1 > 9007199254740991 then return '0' .. value end
    value = s.sub(value, 1, at - 1) .. s.format('%.0f,%.0f', used + 1, newest + 1) .. s.sub(value, tail)
    redis.call('SET', KEYS[1], value, 'KEEPTTL')
    return value
  end
  if stop > arg then -- new sub-buckets push old ones out
    local step = (fresh - stop) / precision
    local keep, list = size - step, ',' .. newest .. s.sub(value, tail, -2)
    local left = #list > 2 * keep and s.match(list, '^' .. s.rep(',[%d-]+', keep) .. '()')
    if left then
      for charged, back in s.gmatch(s.sub(list, left), ',(%d+)%-?(%d*)') do used = used - (charged - (tonumber(back) or 0)) end
      list = s.sub(list, 1, left - 1)
    end
    if used + 1 > s.sub(arg, 27) + 0 then return '0' .. value end
    list = s.rep(',0', step - 1) .. list
    while s.sub(list, -2) == ',0' do list = s.sub(list, 1, -3) end
    value = s.match(ARGV[1], '^%^([^(]+)') .. fresh .. s.format(',%.0f,1', used + 1) .. list .. ';'
    redis.call('SET', KEYS[1], value, 'PX', s.format('%.0f', fresh - s.sub(arg, 1, 13) + 1000))
    return value
  end
elseif value and value ~= '' then
  if #value > #ARGV[1] + 66 then return '' end -- it is no state, and nothing to match
  local reset, at = s.match(value, ARGV[1])
  local refunded, to
  if not reset then reset, at, to, refunded = s.match(value, s.sub(ARGV[1], 1, -3) .. '()%-(%d+)%-?%d*;$') end
  if not reset or #reset ~= 13 then return '' end
  if reset > arg then -- if the first 13 digits are the same, arg is the longer text
    if refunded then
      local charged = s.sub(value, at, to - 1) + 1
      if charged - refunded > s.sub(arg, 27) + 0 or charged > 9007199254740991 then return '0' .. value end
      value = s.sub(value, 1, at - 1) .. s.format('%.0f', charged) .. s.sub(value, to)
    else
      local spare, last = #arg - 26 - (#value - at), s.byte(value, -2)
      if spare < 0 or spare == 0 and s.sub(value, at, -2) >= s.sub(arg, 27) then return '0' .. value end
      if last < 57 then -- '9'
        value = s.sub(value, 1, -3) .. s.char(last + 1, 59)
      else
        value = s.sub(value, 1, at - 1) .. s.format('%.0f;', s.sub(value, at, -2) + 1)
      end
    end
    redis.call('SET', KEYS[1], value, 'KEEPTTL')
    return value
  end
end
local fresh = s.sub(arg, 14, 26)
value = s.match(ARGV[1], '^%^([^(]+)') .. fresh .. (precision and ',1,1;' or ',1;')
redis.call('SET', KEYS[1], value, 'PX', s.format('%.0f', fresh - s.sub(arg, 1, 13) + 1000))
return value
