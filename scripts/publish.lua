-- publish: store an announcement for all clients of this server, such as their topology, unless a newer one is stored.
--
-- KEYS[1]  the announcement: the version, a space, the digest, a newline, the text
-- ARGV[1]  version, from 1 to 2^53-1
-- ARGV[2]  digest of the text, without spaces
-- ARGV[3]  text
--
-- Reply    what is stored afterwards: all of it if its version is above ARGV[1], else its first line
-- Errors   CORRUPT: the stored value is no announcement. Nothing is written.

local stored = redis.call('GET', KEYS[1]) or ''
local head, version = string.match(stored, '^((%d+) %S+)\n')
if stored ~= '' and not head then return redis.error_reply('CORRUPT announcement') end
if (tonumber(version) or 0) > tonumber(ARGV[1]) then return stored end
if (tonumber(version) or 0) == tonumber(ARGV[1]) then return head end
head = ARGV[1] .. ' ' .. ARGV[2]
redis.call('SET', KEYS[1], head .. '\n' .. ARGV[3])
return head
