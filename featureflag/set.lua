-- set: change one flag under a larger version, and tell who watches.
--
-- KEYS[1]  hash of flags
-- ARGV[1]  the flag's name, a field of the hash
-- ARGV[2]  percentage; empty keeps the stored one
-- ARGV[3]  killed: '1', '0'; empty keeps the stored one
-- ARGV[4]  the largest version allowed
--
-- Reply    what is stored now, a JSON object; nil if a flag that isn't there was to be revived. The version is the
--          server's time in hundredths of a second, or the stored version plus 1 if that is more.
-- Errors   VERSION: no larger version is left. Nothing is written.
--
-- What is stored and is no flag counts as absent: no process can have read it.

local most = tonumber(ARGV[4])
local found, old = pcall(cjson.decode, redis.call('HGET', KEYS[1], ARGV[1]) or '')

local function within(x, least, most) return type(x) == 'number' and x >= least and x <= most end

if not (found and type(old) == 'table' and within(old.percent, 0, 100) and within(old.version, 1, most)) then
  if ARGV[3] == '0' then return false end
  old = {percent = 0, version = 0, killed = false}
end

local percent = ARGV[2]
if percent == '' then percent = string.format('%.17g', old.percent) end
local killed = tostring(old.killed == true)
if ARGV[3] ~= '' then killed = tostring(ARGV[3] == '1') end

local time = redis.call('TIME')
local version = math.max(old.version + 1, time[1] * 100 + math.floor(time[2] / 10000))
if version > most then return redis.error_reply('VERSION exhausted: is the clock right?') end

local value = string.format('{"percent":%s,"version":%.0f,"killed":%s}', percent, version, killed)
redis.call('PUBLISH', KEYS[1], ARGV[1]) -- first: if it may not, nothing is written; no process can read before the end
redis.call('HSET', KEYS[1], ARGV[1], value)
return value
